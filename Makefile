# Two commands do everything, the environment included: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
BENCH_STAMP := $(VENV)/installed-bench

.PHONY: help demo test check fmt bench clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

# Everything is installed through the constraints file: an unpinned torch would pull gigabytes.
$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard protos/worldline/v1/*.proto)
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP) ## Two nodes, one live world, there and back, bit for bit
	$(BIN)/worldline demo

test: $(STAMP) ## The whole test suite
	$(BIN)/pytest

check: $(STAMP) ## Lint, types, import contract, protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos

fmt: $(STAMP) ## Format the tree
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The peers that it measures are an extra of their own; a row of one that is missing says so.
$(BENCH_STAMP): $(STAMP)
	-PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --editable '.[bench]'
	touch $@

bench: $(BENCH_STAMP) ## One table: what moves how fast here, beside others, to bench/results/latest.json
	$(BIN)/python -m bench

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) worldline/v1 build dist *.egg-info demo-out
