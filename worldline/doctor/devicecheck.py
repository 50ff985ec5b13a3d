"""Device check: GPUs and their buses. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from worldline.doctor.facts import Gpu, ProcessFacts
from worldline.doctor.finding import Finding, Severity

#: What one PCI Express lane carries by generation, in bytes a second, encoding taken off.
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


def bus_rate_bytes_per_s(gpu: Gpu) -> float:
    """What the GPU's PCI Express link can carry each way; 0 where it is not known.

    By its width now and its highest generation: an idle link is clocked down.
    """
    return _LANE_BYTES_PER_S.get(gpu.pcie_generation_max, 0.0) * gpu.pcie_lanes


def check_devices(facts: ProcessFacts) -> tuple[Finding, ...]:
    """Of one process."""
    here = {gpu.name for gpu in facts.gpus}
    missing = [name for name in facts.devices if name.startswith("cuda") and name not in here]
    return (*_missing(facts, missing), *_narrow(facts))


def _missing(facts: ProcessFacts, names: list[str]) -> Iterator[Finding]:
    for name in names:
        yield Finding(
            Severity.ERROR,
            "DEVICE_MISSING",
            facts.subject,
            f"{name} was asked for and is not here",
            "nothing can rest on it or be computed there",
            "nvidia-smi -L    # docker run --gpus all; CUDA_VISIBLE_DEVICES hides the others",
            name,
        )


def _narrow(facts: ProcessFacts) -> Iterator[Finding]:
    for gpu in facts.gpus:
        if 0 < gpu.pcie_lanes < gpu.pcie_lanes_max:
            yield Finding(
                Severity.WARNING,
                "BUS_NARROW",
                facts.subject,
                f"{gpu.name} has {gpu.pcie_lanes} of {gpu.pcie_lanes_max} lanes of its bus",
                "what is copied to or from host memory, and RDMA, has that part of the rate",
                "lspci -vv | grep -E 'LnkCap|LnkSta'    # seat the card or riser again",
                gpu.name,
            )
