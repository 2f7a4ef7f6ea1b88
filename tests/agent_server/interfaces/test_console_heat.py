"""Rows of the heat map of a job, from answers of this host and of hosts that may send anything."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from console_server import write_history

from whystall.agent_server.interfaces.web.console.heat import LEVELS, asked, heat_map
from whystall.agent_server.watch.history import history
from whystall.tools.contract.errors import ToolError
from whystall.tools.history.data import WaitPlace


@pytest.fixture(scope="module")
def reply(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    write_history(home)
    return history(asked("slurm:4242", "1h"), home / "watch").result.model_dump(mode="json")


def test_cells_are_of_all_parts_and_the_longest_waits_are_darkest(reply: dict[str, Any]) -> None:
    shown = heat_map(reply, "en")
    assert [row.what for row in shown.rows][:2] == [
        "asleep in futex at all_reduce (train.py:212)",
        "uninterruptible in fsync at save (checkpoint.py:88), for /scratch/run7/checkpoint.pt",
    ]
    for row in shown.rows:
        assert sum(cells.width for cells in row.cells) == shown.parts == 60
        assert row.cells[0].level == -1, "half an hour was not recorded"
        assert all(one.at + one.width == two.at for one, two in zip(row.cells, row.cells[1:], strict=False))
    darkest = [max(cells.level for cells in row.cells) for row in shown.rows]
    assert LEVELS >= darkest[0] > 0.6 * LEVELS  # the top of the scale is a round number
    assert darkest[0] > max(darkest[1:])
    assert any("30" in line for line in shown.blind), "what was not recorded is stated"


def test_what_changed_is_marked_in_its_row(reply: dict[str, Any]) -> None:
    given = copy.deepcopy(reply)
    data = given["data"]
    place = {key: data["rows"][1][key] for key in WaitPlace.model_fields}
    numbers = {"before": 0.1, "after": 0.9, "low": 0.5, "high": 1.0, "p_value": 0.001, "q_value": 0.002}
    data["changes"] = [
        {**place, "direction": "grew", "since": data["since"], "until": "2999-01-01T00:00:00Z", **numbers}
    ]
    shown = heat_map(given, "zh")
    assert [[(mark.at, mark.width) for mark in row.marks] for row in shown.rows] == [[], [(0.0, 60.0)], []]
    assert shown.changes[0][2] == shown.rows[1].marks[0].text


Change = Callable[[dict[str, Any]], Any]


def rows(change: Change) -> Change:
    return lambda given: change(given["data"]["rows"][0])


@pytest.mark.parametrize(
    "change",
    [
        lambda given: given.pop("data"),
        lambda given: given.pop("coverage"),
        lambda given: given["data"].update(recorded_s=[]),
        lambda given: given["data"].update(recorded_s=[1.0] * 100_000),
        lambda given: given["data"].update(recorded_s=[float("inf")] * 60),
        lambda given: given["data"].update(since="now"),
        rows(lambda row: row["parts_s"].pop()),
        rows(lambda row: row.update(parts_s=[float("nan")] * 60)),
        rows(lambda row: row.update(state="X")),
        rows(lambda row: row.update(ended_by="a b")),
        rows(lambda row: row.update(waited_s="<b>")),
    ],
)
def test_an_answer_that_is_no_history_is_refused(
    reply: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> None:
    given = copy.deepcopy(reply)
    change(given)
    with pytest.raises((ValueError, KeyError, OverflowError)):
        heat_map(given, "en")


def test_an_unknown_span_is_the_first_and_a_long_name_is_refused() -> None:
    assert asked("j", "9y").since == "1h"
    assert asked("j", "7d").since == "7d"
    with pytest.raises(ToolError, match="bad_argument"):
        asked("j" * 300, "1h")
