"""Checks of the object itself: its members, and whether its code and weights have names."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from services.engine.check.case import Case
from services.engine.check.finding import Found, failed, held, listed, warned
from services.engine.interface import model_problems
from services.engine.world import OwnsState, SplitsNoise

#: What comes with every engine.
_OF_THE_ENGINE = frozenset({"numpy", "services", "torch", "torchgen", "worldline"})
#: Files of the machine, which are no weights.
_OF_THE_MACHINE = ("/proc/", "/sys/", "/dev/", "/etc/")
_CODE_SUFFIXES = (".py", ".pyc", ".so", ".pth")


def interface(case: Case) -> Found:
    """The members of `WorldModel` are there and their sizes make sense."""
    problems = model_problems(case.subject.model)
    if problems:
        return failed("; ".join(problems), "see the members in docs/engines.md")
    model = case.subject.model
    also = [
        name
        for name, kind in (("OwnsState", OwnsState), ("SplitsNoise", SplitsNoise))
        if isinstance(model, kind)
    ]
    return held(
        f"preset {model.preset}: {model.quanta_per_block} quanta a block of "
        f"{model.denoising_steps} steps{''.join(f', {name}' for name in also)}"
    )


def code(case: Case) -> Found:
    """Everything that decides frames is in the fingerprint, or is named by torch's version."""
    plugin = case.subject.plugin
    if plugin is None:
        return held("built in")
    own = plugin.name.partition(":")[0].partition(".")[0]
    covered = {own, *plugin.code_packages, *_OF_THE_ENGINE, *_of_torch()}
    foreign = sorted(
        name
        for name in case.subject.modules - covered - sys.stdlib_module_names
        if getattr(sys.modules.get(name), "__file__", None) and not name.startswith("_")
    )
    if foreign:
        return warned(
            f"it brings {listed(foreign)}, whose code is not in the fingerprint",
            'name what decides frames on the class: code_packages = ("...",)',
        )
    names = sorted({own, *plugin.code_packages})
    return held(f"files of {listed(names)}: SHA-256 {plugin.code[:16]}")


def weights(case: Case) -> Found:
    """Weights follow from code and seed, or the plug-in says which they are."""
    plugin = case.subject.plugin
    if plugin is None:
        return held("built in: they follow from code and seed")
    said = plugin.weights(case.wish.weights_seed)
    if said:
        return held(f"weights_digest says {said[:24]}")
    read = sorted({path for path in case.subject.files if _may_hold_weights(path)})
    if read:
        return warned(
            f"it reads {listed(read, 3)}, which no fingerprint names: two nodes with other files "
            "would look equal",
            "add a static method weights_digest(weights_seed) that names what is read",
        )
    return held("no file is read: they follow from code and seed")


def _may_hold_weights(path: str) -> bool:
    """Neither code, nor of the machine, nor of an installed package or Python."""
    if path.endswith(_CODE_SUFFIXES) or path.startswith(_OF_THE_MACHINE):
        return False
    installed = any(part in ("site-packages", "dist-packages") for part in Path(path).parts)
    return not installed and not path.startswith(sys.base_prefix + "/lib/")


def _of_torch() -> set[str]:
    """Packages that come with torch, at versions that its own decides as far as it matters."""
    try:
        named = requires("torch") or []
    except PackageNotFoundError:
        return set()
    names = {re.split(r"[^\w-]", line, maxsplit=1)[0] for line in named}
    return {name.lower().replace("-", "_") for name in names} | {"mpmath", "functorch", "yaml"}
