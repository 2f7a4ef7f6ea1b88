"""The section of docs/adding.md about collectors, followed in a copy of the repository."""

from __future__ import annotations

from pathlib import Path

from docs.adding_guide import follow, run


def test_a_collector_can_be_added(tmp_path: Path) -> None:
    added = follow("Add a collector", tmp_path)
    run(tmp_path, "-m", "whystall.bpf.build")
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/bpf/test_bpf_layout.py", *added)
