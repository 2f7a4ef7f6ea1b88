"""Lists of CPUs."""

from __future__ import annotations

import os

import pytest

from whystall.tools.collect.ftrace.cpus import MAX_CPU, chosen_cpus, format_cpus, mask_of, online_cpus, parse_cpus
from whystall.tools.contract.errors import ErrorCode, ToolError


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0,1,4", (0, 1, 4)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        (" 4 , 0-1,1 ", (0, 1, 4)),
        ("7-7", (7,)),
        (str(MAX_CPU), (MAX_CPU,)),
        ("", ()),
        (" all ", ()),
    ],
)
def test_a_list_is_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize(
    "text",
    ["a", "0,", ",", "3-1", "-1", "0-", "1.5", "0x1", "1 2", "0-3-5", "٣", "+1", "8192", "9" * 11, "0;id", "1\n,x"],
)
def test_anything_else_is_one_line_of_error(text: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_cpus(text)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cpus", [(), (0,), (0, 1, 2), (0, 2, 3, 9), (5, 7)])
def test_what_is_written_is_read_again(cpus: tuple[int, ...]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus


def test_runs_are_written_short() -> None:
    assert format_cpus([8, 3, 1, 2, 0, 3]) == "0-3,8"


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [
        ((), "00000000"),
        ((0, 1), "00000003"),
        ((31,), "80000000"),
        ((0, 32), "00000001,00000001"),
        ((95,), "80000000,00000000,00000000"),
    ],
)
def test_a_mask_has_words_of_32_bits_the_highest_first(cpus: tuple[int, ...], mask: str) -> None:
    assert mask_of(cpus) == mask


def test_cpus_are_checked_against_the_host() -> None:
    online = online_cpus()
    assert set(os.sched_getaffinity(0)) <= set(online)
    assert chosen_cpus([]) == online
    assert chosen_cpus([online[-1], online[-1]]) == (online[-1],)
    with pytest.raises(ToolError, match=f"no CPU {MAX_CPU}"):
        chosen_cpus([online[0], MAX_CPU])
