from __future__ import annotations

import pytest

from whystall.tools.timeline.profile_reading.element_size import element_size


@pytest.mark.parametrize(
    ("name", "size"),
    [("Float", 4), ("c10::BFloat16", 2), ("long int", 8), ("Float8_e4m3fn", 1), ("c10::complex<double>", 16)],
)
def test_by_torchs_names_and_by_cpps(name: str, size: int) -> None:
    assert element_size(name) == size


@pytest.mark.parametrize("name", ["", "Widget", "float" * 50])
def test_what_is_not_known_has_no_size(name: str) -> None:
    assert element_size(name) == -1
