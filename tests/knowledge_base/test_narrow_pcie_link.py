"""The cause narrow_pcie_link: a wait for a copy, and a link at half of its rate or less."""

from __future__ import annotations

import pytest
from making import finding
from test_causes import candidates

from whystall.tools.contract.findings import Finding


def copies(chain: str = "step > copy_ > cudaMemcpyAsync") -> Finding:
    return finding("path.wait", words={"wait": "device", "chain": chain}, window_pct=40)


def link(width: float = 16, generation: float = 5) -> Finding:
    numbers = {"pcie_width": width, "pcie_width_max": 16, "pcie_generation": generation, "pcie_generation_max": 5}
    return finding("gpu.pcie", **numbers)


@pytest.mark.parametrize("narrow", [link(width=8), link(generation=2)], ids=["width", "generation"])
def test_copies_over_a_link_at_half_its_rate(narrow: Finding) -> None:
    assert "narrow_pcie_link" in candidates(copies(), narrow)


@pytest.mark.parametrize(
    ("waits", "other"),
    [
        (copies(), link(generation=4)),
        (copies(), finding("gpu.pcie", replays=9, pcie_width=16, pcie_width_max=16)),
        (copies("step > backward > cudaStreamSynchronize"), link(width=8)),
    ],
    ids=["one generation", "replays", "no copy"],
)
def test_other_waits_and_other_links_accuse_nothing(waits: Finding, other: Finding) -> None:
    assert "narrow_pcie_link" not in candidates(waits, other)
