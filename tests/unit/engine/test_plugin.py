"""Plug-ins: models of other packages, loaded by name, whole or not at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from services.engine.chores import Chores
from services.engine.model.factory import build_world, engine_code, presets, weights_digest
from services.engine.models import Models
from services.engine.plugin import load_plugin, load_plugins
from services.engine.plugincode import packages_digest
from services.engine.pluginname import plugin_names
from services.engine.settings import EngineSettings
from services.engine.worker import Worker
from tests.unit.engine.support import PrivateState, script
from worldline.cli.common import model_names
from worldline.cli.parts import Addresses, ClusterOptions
from worldline.errors import InvalidInput

CPU = torch.device("cpu")
EXAMPLES = Path(__file__).parents[3] / "examples"

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Makes a module of a package that lasts as long as the test; returns `module:World`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    before = set(sys.modules)

    def write(module: str, source: str) -> str:
        path = tmp_path / (module.replace(".", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return f"{module}:World"

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


GOOD = """
from my_world import MyWorld

class World(MyWorld):
    preset = "other"
"""


def spoilt(line: str) -> str:
    return GOOD + f"    {line}\n"


def test_a_plug_in_is_served_beside_the_built_in_presets(write: Write) -> None:
    plugins = load_plugins([write("pkg.worlds", GOOD), "my_world:MyWorld"], presets())
    assert presets(plugins) == ("tiny", "small", "mg2", "other", "my-world")
    for preset in ("other", "my-world", "tiny"):
        assert build_world(preset, 0, CPU, plugins).preset == preset
    with pytest.raises(InvalidInput, match="tiny, small, mg2, other, my-world") as unknown:
        build_world("mine", 0, CPU, plugins)
    assert unknown.value.field == "world.preset"


async def test_an_engines_models_build_it_once(write: Write) -> None:
    plugins = load_plugins([write("pkg.worlds", GOOD)], presets())
    worker = Worker(1)
    try:
        models = Models(Chores(worker), 5, CPU, plugins)
        loaded = await models.warm("other")
        assert (await models.get("other")).model is loaded.model
        session = PrivateState(loaded.model)
        assert session.block(script(0)).count == 4
        with pytest.raises(InvalidInput, match="other"):
            await models.get("mine")
    finally:
        worker.close()


def test_a_function_may_make_it(write: Write) -> None:
    name = write(
        "pkg.worlds",
        GOOD + "\ndef make(weights_seed, device):\n    return World(weights_seed, device)\n\n"
        'make.preset = "other"\n',
    )
    plugin = load_plugin(name.replace(":World", ":make"))
    assert plugin.build(0, CPU).preset == "other"


# What is at fault is named: module, attribute, member.


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [
        ("my_world", "MODEL_NAME_INVALID", "module:attribute"),
        ("my world:World", "MODEL_NAME_INVALID", "module:attribute"),
        ("my_world:", "MODEL_NAME_INVALID", "module:attribute"),
        ("no_such_package.worlds:World", "MODEL_IMPORT_FAILED", "PYTHONPATH"),
        ("my_world:Their", "MODEL_ATTRIBUTE_MISSING", "MyWorld"),
        ("my_world:MyWorld.inner", "MODEL_ATTRIBUTE_MISSING", "inner"),
        ("my_world:SIGMAS", "MODEL_INCOMPLETE", "tuple"),
        ("my_world:MyWorld.block", "MODEL_INCOMPLETE", "preset is None"),
    ],
)
def test_a_name_that_names_no_model(write: Write, name: str, reason: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_plugin(name)
    assert (refused.value.reason, refused.value.field) == (reason, "models")
    assert said in refused.value.message
    assert name.partition(":")[0] in refused.value.message


def test_a_module_that_raises(write: Write) -> None:
    with pytest.raises(InvalidInput, match=r"pkg\.worlds raised ZeroDivisionError") as refused:
        load_plugin(write("pkg.worlds", "1 / 0"))
    assert refused.value.reason == "MODEL_IMPORT_FAILED"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("preset = 7", "preset is 7"),
        ("preset = property(lambda self: 'x')", "on the class itself"),
        ("preset = 'a b'", "without spaces"),
        ("preset = 'x' * 65", "at most 64"),
        ("warm = None", "warm() is missing"),
        ("initialise = 3", "initialise is int"),
        ("def block(self, state, action): ...", "cannot be called as block(state, action, steps)"),
        ("def lend(self): ...", "take_back(state) is missing"),
        ("def take_back(self, state): ...", "lend() is missing"),
        ("def split(self, state): ...", "cannot be called as split(state, branch)"),
        ("def weights_digest(self, weights_seed): ...", "weights_digest(weights_seed)"),
    ],
)
def test_a_class_that_lacks_something(write: Write, line: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_plugin(write("pkg.worlds", spoilt(line)))
    assert refused.value.reason == "MODEL_INCOMPLETE"
    assert "pkg.worlds:World" in refused.value.message
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("line", "reason", "said"),
    [
        ("def __init__(self): ...", "MODEL_BUILD_FAILED", "TypeError"),
        ("quanta_per_block = 0", "MODEL_INCOMPLETE", "quanta_per_block is 0"),
        ("denoising_steps = 2.0", "MODEL_INCOMPLETE", "denoising_steps is 2.0"),
        (
            "def __init__(self, weights_seed, device): self.preset = 'third'",
            "MODEL_INCOMPLETE",
            "'third'",
        ),
    ],
)
def test_an_object_that_lacks_something(write: Write, line: str, reason: str, said: str) -> None:
    plugin = load_plugin(write("pkg.worlds", spoilt(line)))
    with pytest.raises(InvalidInput) as refused:
        plugin.build(0, CPU)
    assert refused.value.reason == reason
    assert said in refused.value.message


@pytest.mark.parametrize("preset", ["tiny", "my-world"])
def test_two_models_of_one_preset(write: Write, preset: str) -> None:
    name = write("pkg.worlds", spoilt(f"preset = {preset!r}"))
    with pytest.raises(InvalidInput, match=preset) as refused:
        load_plugins(["my_world:MyWorld", name], presets())
    assert refused.value.reason == "MODEL_PRESET_TAKEN"


def test_names_in_a_setting() -> None:
    assert plugin_names(" a.b:C , d:E,a.b:C,") == ("a.b:C", "d:E")
    assert plugin_names("") == ()
    given = {"placement_address": "h:1", "mover_address": "h:2", "models": "a.b:C,d:E"}
    assert EngineSettings(**given).models == ("a.b:C", "d:E")
    with pytest.raises(ValueError, match="module:attribute"):
        EngineSettings(**given | {"models": "a.b"})


def test_a_clusters_engines_are_told() -> None:
    options = ClusterOptions(nodes=1, models=model_names(" a.b:C , d:E,"))
    told = options.engine_spec(Addresses(), "node-1").variables["models"]
    assert plugin_names(told) == ("a.b:C", "d:E")
    assert (
        plugin_names(ClusterOptions().engine_spec(Addresses(), "node-1").variables["models"]) == ()
    )


def test_settings_are_read_without_torch() -> None:
    """A port that is taken is said at once, and not after torch has come."""
    code = "import sys, services.engine.settings\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# T0 stays honest: code and weights of a plug-in are in the fingerprint.


def digest_of(write: Write, source: str) -> str:
    name = write("pkg.worlds", source)
    for module in ("pkg", "pkg.worlds"):
        sys.modules.pop(module, None)
    return engine_code(load_plugins([name], presets()))


def test_its_source_is_part_of_the_fingerprint(write: Write) -> None:
    before = digest_of(write, GOOD)
    assert digest_of(write, GOOD) == before != engine_code()
    assert digest_of(write, GOOD + "# a comment\n") != before


def test_every_file_of_its_package_counts(write: Write, tmp_path: Path) -> None:
    """Kernels, compiled extensions and data decide frames as sources do."""
    before = digest_of(write, GOOD)
    seen = {before}
    for name in ("kernel.cu", "fast.cpython-311-x86_64-linux-gnu.so", "deep/table.json"):
        path = tmp_path / "pkg" / name
        path.parent.mkdir(exist_ok=True)
        for content in (b"1", b"2"):
            path.write_bytes(content)
            seen.add(digest_of(write, GOOD))
        path.rename(path.with_name(f"other-{path.name}"))
        seen.add(digest_of(write, GOOD))
        path.with_name(f"other-{path.name}").unlink()
    assert len(seen) == 1 + 3 * 3
    for name in ("__pycache__/worlds.cpython-311.pyc", "stale.pyc", ".hidden"):
        path = tmp_path / "pkg" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"1")
    assert digest_of(write, GOOD) == before


def test_other_packages_count_where_it_names_them(write: Write) -> None:
    write("helper", "GAIN = 1")
    named = spoilt("code_packages = ('helper',)")
    before = digest_of(write, named)
    write("helper", "GAIN = 2")
    assert digest_of(write, named) != before
    with pytest.raises(InvalidInput, match="absent_helper") as refused:
        digest_of(write, spoilt("code_packages = ('absent_helper',)"))
    assert refused.value.reason == "MODEL_CODE_UNKNOWN"


def test_code_without_files_is_refused() -> None:
    with pytest.raises(InvalidInput, match="sys has no files"):
        packages_digest(["sys"])


def test_its_weights_are_part_of_the_fingerprint(write: Write) -> None:
    named = spoilt("weights_digest = staticmethod(lambda seed: 'sha256 of a file')")
    plugins = load_plugins([write("pkg.worlds", named)], presets())
    other = spoilt("weights_digest = staticmethod(lambda seed: 'sha256 of another file')")
    others = load_plugins([write("pkg2.worlds", other)], presets())
    assert weights_digest(0, plugins) == weights_digest(0, plugins)
    assert len({weights_digest(seed, some) for seed in (0, 1) for some in (plugins, others)}) == 4


@pytest.mark.parametrize("body", ["seed / 0", "''", "7"])
def test_weights_that_it_fails_to_name(write: Write, body: str) -> None:
    named = spoilt(f"weights_digest = staticmethod(lambda seed: {body})")
    plugins = load_plugins([write("pkg.worlds", named)], presets())
    with pytest.raises(InvalidInput, match="weights_digest") as refused:
        weights_digest(0, plugins)
    assert refused.value.reason == "MODEL_WEIGHTS_UNKNOWN"


def test_without_plug_ins_nothing_changed() -> None:
    assert weights_digest(0) != weights_digest(1)
    assert engine_code({}) == engine_code()
