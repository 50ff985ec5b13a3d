"""What containers are made from, looked at without an engine: ports, pins, targets, trimming."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from services.mover.settings import MoverSettings
from worldline.hostport import dialled, listened

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
NODES = ("node-1", "node-2", "node-3")
_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def _load(name: str) -> dict[str, Any]:
    text = _VARIABLE.sub(r"\1", (DOCKER / name).read_text())
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"worldline_docker_{name}", DOCKER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SERVICES: dict[str, dict[str, Any]] = _load("compose.yaml")["services"]


def test_no_published_port_is_beyond_loopback() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_images_are_pinned() -> None:
    tags = {service["image"].rpartition(":")[2] for service in SERVICES.values()}
    assert "latest" not in tags
    assert all(tags)
    base = re.search(r"^ARG BASE=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base[1])


@pytest.mark.parametrize("node", NODES)
def test_a_node_is_one_place(node: str) -> None:
    holder, mover, engine = (SERVICES[f"{node}{part}"] for part in ("", "-mover", "-engine"))
    for part in (mover, engine):
        assert part["network_mode"] == part["pid"] == part["ipc"] == f"service:{node}"
        assert part["volumes"] == [f"{node}-run:/run/worldline"]
        assert part["depends_on"][0] == node
    address = holder["networks"]["worldline"]["ipv4_address"]
    environment = mover["environment"] | engine["environment"]
    assert environment["WORLDLINE_MOVER_NODE_ID"] == environment["WORLDLINE_ENGINE_NODE_ID"] == node
    for name, port in (("MOVER", 7402), ("ENGINE", 7403)):
        advertised = dialled(environment[f"WORLDLINE_{name}_ADVERTISE"], "advertise")
        assert (advertised.host, advertised.port) == (address, port)
        assert listened(environment[f"WORLDLINE_{name}_LISTEN"]).port == port
    assert environment["WORLDLINE_ENGINE_MOVER_ADDRESS"] == "127.0.0.1:7402"
    assert environment["UCX_TLS"] == "tcp,self"


def test_each_nodes_parts_have_one_gpu() -> None:
    override = _load("compose.gpu.yaml")["services"]
    assert set(override) == {f"{node}-{part}" for node in NODES for part in ("mover", "engine")}
    given = []
    for node in NODES:
        mover, engine = (override[f"{node}-{part}"] for part in ("mover", "engine"))
        assert mover["environment"]["WORLDLINE_MOVER_DEVICES"] == "cuda:0"
        assert engine["environment"]["WORLDLINE_ENGINE_DEVICE"] == "cuda:0"
        assert mover["deploy"] == engine["deploy"]
        (device,) = mover["deploy"]["resources"]["reservations"]["devices"]
        assert device["driver"] == "nvidia"
        given += device["device_ids"]
    assert given == ["0", "1", "2"]


def test_every_service_tells_whether_it_serves() -> None:
    for name, service in SERVICES.items():
        if name in NODES or service.get("profiles"):
            continue
        command, address, flag, proto = service["healthcheck"]["test"][1:]
        assert (command, flag) == ("worldline-health", "--service")
        kind = service["command"][0].removeprefix("worldline-")
        assert proto == f"worldline.v1.{kind.capitalize()}Service"
        listen = service["environment"][f"WORLDLINE_{kind.upper()}_LISTEN"]
        assert dialled(address, "address").port == listened(listen).port


def test_services_have_the_time_to_end_that_they_take() -> None:
    fields = MoverSettings.model_fields
    takes_s = fields["grace_s"].default + fields["flush_s"].default
    for service in SERVICES.values():
        if not service.get("profiles"):
            assert int(service["stop_grace_period"].removesuffix("s")) > 2 * takes_s
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]


def test_every_metrics_endpoint_is_scraped_and_no_other() -> None:
    told = set()
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_METRICS_LISTEN"):
                host = service.get("network_mode", f"service:{name}").removeprefix("service:")
                told.add(f"{host}:{listened(value).port}")
    jobs = _load("observability/prometheus.yaml")["scrape_configs"]
    targets = [
        target for job in jobs for each in job["static_configs"] for target in each["targets"]
    ]
    assert len(targets) == 8
    assert set(targets) == told


def test_the_collectors_pipelines_are_of_parts_that_exist() -> None:
    config = _load("observability/collector.yaml")
    for pipeline in config["service"]["pipelines"].values():
        for part in ("receivers", "processors", "exporters"):
            assert pipeline[part]
            assert set(pipeline[part]) <= set(config[part])
    host = config["exporters"]["otlp/jaeger"]["endpoint"].partition(":")[0]
    assert host in SERVICES


def test_requirements_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module = _module("requirements")
    needed = module.requirements(ROOT / "pyproject.toml", build=False)
    assert needed == project["project"]["dependencies"]
    built = module.requirements(ROOT / "pyproject.toml", build=True)
    assert built[len(needed) :] == project["build-system"]["requires"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    for name in (
        "torch/include/a.h", "torch/lib/libtorch.so", "torch/lib/libtorch.a", "torch/__init__.py",
        "torch/test/test_jit", "torch/testing/__init__.py", "torch/bin/torch_shm_manager",
        "torch/bin/test_jit", "numpy/tests/test_a.py", "numpy/testing/__init__.py",
        "libucx/lib/libucp.so", "libucx/lib/libucp.so.0", "libucx/lib/libucp.so.0.0.0",
        "libucx/lib/ucx/libuct_cma.so",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("library" if "libucp" in name else name)
    return tmp_path


def test_trimming_leaves_what_is_loaded(packages: Path) -> None:
    module = _module("trim")
    module.remove_unused(packages)
    module.link_copies(packages)
    left = {str(p.relative_to(packages)) for p in packages.rglob("*") if not p.is_dir()}
    assert left == {
        "torch/lib/libtorch.so", "torch/__init__.py", "torch/testing/__init__.py",
        "torch/bin/torch_shm_manager", "numpy/testing/__init__.py", "libucx/lib/libucp.so",
        "libucx/lib/libucp.so.0", "libucx/lib/libucp.so.0.0.0", "libucx/lib/ucx/libuct_cma.so",
    }  # fmt: skip
    links = {path.name for path in packages.rglob("*") if path.is_symlink()}
    assert links == {"libucp.so", "libucp.so.0"}
    assert (packages / "libucx/lib/libucp.so").read_text() == "library"
    assert module.size_bytes(packages / "libucx/lib") == len("library") + len(
        "libucx/lib/ucx/libuct_cma.so"
    )


@pytest.mark.parametrize(
    ("line", "built_for", "other"),
    [("None", "cpu", "cuda"), ("'13.0'", "cuda", "cpu")],
)
def test_an_image_is_of_the_variant_that_was_asked_for(
    packages: Path, line: str, built_for: str, other: str
) -> None:
    module = _module("trim")
    (packages / "torch" / "version.py").write_text(f"cuda: Optional[str] = {line}\n")
    module.check_variant(packages, built_for)
    with pytest.raises(SystemExit, match="wheelhouse"):
        module.check_variant(packages, other)


def test_the_image_is_never_root() -> None:
    last_stage = (DOCKER / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER worldline$", last_stage, re.MULTILINE)
    assert "pip" not in last_stage
    assert sys.version_info[:2] == (3, 11)
