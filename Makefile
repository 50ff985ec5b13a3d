# Two commands do everything, the environment included: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
BENCH_STAMP := $(VENV)/installed-bench

# Of images: `make images VARIANT=cuda BASE=... IMAGE=...`.
VARIANT ?= cpu
IMAGE ?= worldline:$(VARIANT)
BASE ?=
DOCKER ?= docker

.PHONY: help demo test check fmt bench wheelhouse images compose-demo clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

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

# With the base's own version of Python; the project itself is built from the tree.
wheelhouse: ## Every wheel of the image into wheelhouse/VARIANT, for builds without internet
	$(PYTHON) -m venv build/pip
	mkdir -p wheelhouse
	$(PYTHON) docker/requirements.py pyproject.toml --build > wheelhouse/$(VARIANT).txt
	PIP_CONSTRAINT=constraints.txt build/pip/bin/pip wheel --quiet \
	  --wheel-dir wheelhouse/$(VARIANT) --requirement wheelhouse/$(VARIANT).txt

# From a wheelhouse, where there is one, and then from nothing else.
OFFLINE = $(if $(wildcard wheelhouse/$(VARIANT)/*.whl),--network none --build-arg PIP_NO_INDEX=1)
images: ## The image IMAGE (worldline:cpu; VARIANT=cuda for GPUs)
	$(DOCKER) build --file docker/Dockerfile --tag $(IMAGE) --build-arg VARIANT=$(VARIANT) \
	  $(if $(BASE),--build-arg BASE=$(BASE)) $(OFFLINE) .

compose-demo: $(STAMP) ## Three nodes in containers: move, kill one, cut one off, heal it
	$(BIN)/python docker/demo.py --image $(IMAGE)

clean: ## Remove the environment and everything generated
	rm -rf $(VENV) worldline/v1 build dist *.egg-info demo-out wheelhouse
