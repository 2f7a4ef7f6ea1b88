"""The table in docs/kernels.md is that of the last full run, and says what the results say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kernels import stock
from kernels.table import BEGIN, END, PAGE, RESULTS, table, with_table


def seen(tool: str, *engines: str, privilege: str = "root", kprobes: bool = True) -> dict[str, Any]:
    served = {f"collector{n}": engine for n, engine in enumerate(engines)}
    return {"tool": tool, "privilege": privilege, "kprobes": kprobes, "engines": served, "not_seen": []}


def result(release: str, *lines: dict[str, Any], verdict: str = "passed") -> dict[str, Any]:
    return {"release": release, "verdict": verdict, "seen": list(lines)}


def test_the_page_has_the_table_of_the_last_full_run() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    assert with_table(text, table(results)) == text, "run `make test-kernels`, or `python -m kernels.table`"


def test_the_last_full_run_had_every_kernel_and_both_privileges() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(results) == {*stock.SERIES, "host"}
    for result in results.values():
        assert {line["privilege"] for line in result["seen"]} == {"root", "capabilities"}


def test_kernels_stand_in_their_order_and_this_host_last() -> None:
    made = table(
        {
            "host": result("6.18.1", seen("fileslower", "ebpf", kprobes=False)),
            "6.1": result("6.1.0-50-amd64", seen("fileslower", "ebpf")),
            "5.10": result("5.10.0-32-amd64", seen("fileslower", "ebpf")),
        }
    )
    assert made.splitlines()[0] == "| tool | 5.10.0-32-amd64 | 6.1.0-50-amd64 | 6.18.1, no kprobes |"


@pytest.mark.parametrize(
    ("lines", "cell"),
    [
        ([seen("t", "ebpf"), seen("t", "ebpf", privilege="capabilities")], "ebpf"),
        ([seen("t", "ebpf"), seen("t", "procfs", privilege="capabilities")], "ebpf; capabilities: procfs"),
        (
            [seen("t", "procfs", "ebpf"), seen("t", "ebpf"), seen("t", "bcc")],
            "ebpf + procfs or bcc; capabilities: not tried",
        ),
        ([seen("other", "ebpf")], "-"),
    ],
    ids=["the same", "less without root", "two engines in one answer, or another", "not judged"],
)
def test_a_cell_says_by_which_engines(lines: list[dict[str, Any]], cell: str) -> None:
    made = table({"6.1": result("6.1", *lines), "6.12": result("6.12", seen("t", "ebpf"))})
    (row,) = [line for line in made.splitlines() if line.startswith("| `t` |")]
    assert row.split(" | ")[1] == cell


def test_nothing_is_claimed_of_a_kernel_that_failed() -> None:
    with pytest.raises(ValueError, match=r"6\.1 did not pass"):
        table({"6.1": result("6.1", seen("t", "ebpf"), verdict="failed")})


def test_a_page_without_the_lines_around_the_table_is_an_error() -> None:
    assert with_table(f"a\n{BEGIN}old\n{END}z\n", "new\n") == f"a\n{BEGIN}new\n{END}z\n"
    with pytest.raises(ValueError, match="lacks the lines"):
        with_table("no place", "new")
