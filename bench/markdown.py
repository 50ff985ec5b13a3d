"""Markdown: a document of the bench as a section for the docs.

python -m bench.markdown bench/results/latest.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import number

_HEADINGS = ("row", "value", "bar", "met", "verified", "repeats", "note")
_WORDS = {True: "yes", False: "no", None: ""}


def section(document: Mapping[str, Any]) -> str:
    """What it was measured on, and its table."""
    machine, versions = document["machine"], document["versions"]
    gpus = ", ".join(machine["gpus"]["names"]) or "no GPU"
    facts = (
        f"{document['started_at']}, commit {document['commit'][:12] or 'unknown'}"
        f"{', with changes' if document['dirty'] else ''}, seed {document['seed']}.",
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] >> 30} GiB, "
        f"{gpus}; kernel {machine['kernel']}, shared memory in pages of "
        f"{machine['page_bytes']} bytes (transparent huge pages: "
        f"{machine['transparent_huge_pages_shmem'] or 'unknown'}), "
        f"TCP {machine['tcp_congestion_control'] or 'unknown'}; "
        f"others used {machine['used_by_others']:.0%} of the processors.",
        ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + ".",
    )
    lines = [_line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
    lines += [_line(_cells(row)) for row in document["rows"]]
    return "\n\n".join(facts) + "\n\n" + "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Any]) -> Sequence[str]:
    skipped = row["skipped"] is not None
    value = "skipped" if skipped else "-" if row["value"] is None else number(row["value"])
    return (
        f"`{row['name']}`",
        value if row["value"] is None else f"{value} {row['unit']}",
        row["bar"] or "",
        _WORDS[row["ok"]],
        _WORDS[row["verified"]],
        str(row["repeats"] or ""),
        row["skipped"] if skipped else row["detail"],
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Print the section of the document that the command line names."""
    print(section(json.loads(Path(sys.argv[1]).read_text())), end="")


if __name__ == "__main__":
    main()
