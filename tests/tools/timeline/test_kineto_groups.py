"""Process groups of a Kineto trace, in all the forms `ranks` was written, and in none."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.tools.timeline.kineto.groups import Groups, Mentioned
from whystall.tools.timeline.profile_reading.groups import RANK_LIMIT, number, ranks_of


def entry(name: object = "0", ranks: Any = None, **more: Any) -> dict[str, Any]:
    return {"pg_name": name, "pg_desc": "default_pg", "pg_size": 2, "ranks": ranks, **more}


@pytest.mark.parametrize(
    ("value", "ranks"),
    [
        ([1, 0], (0, 1)),
        ("[1, 0]", (0, 1)),
        ("[]", ()),
        ([], ()),
        (" [ 3 ,4 ] ", (3, 4)),
        ([1, 1], (1,)),
        ("[0, 1, ...]", None),
        ("0, 1", None),
        ([0, "1"], None),
        ([0, True], None),
        ([-1], None),
        ([2**31], None),
        ("[" + "0, " * 10 + "]", None),
        (list(range(RANK_LIMIT + 1)), None),
        (None, None),
        ({"0": 1}, None),
        (7, None),
    ],
)
def test_ranks(value: object, ranks: object) -> None:
    assert ranks_of(value) == ranks


def test_ranks_of_a_very_large_job() -> None:
    assert ranks_of(str(list(range(100_000)))) == tuple(range(100_000))


@pytest.mark.parametrize(
    ("value", "found"),
    [(3, 3), ("3", 3), (3.0, 3), ("x", -1), (-3, -1), (2**63, -1), ([], -1), ({}, -1), (None, -1), (float("nan"), -1)],
)
def test_number(value: object, found: int) -> None:
    assert number(value) == found


def test_the_configuration_in_its_order() -> None:
    groups = Groups({"world_size": 4, "backend": "nccl", "pg_config": [entry("2", [2, 3]), entry("0", "[0, 1, 2, 3]")]})
    assert [group.key for group in groups.configured] == ["2|2,3", "0|0,1,2,3"]
    assert [group.backend for group in groups.configured] == ["nccl", "nccl"]
    assert groups.frame().rows() == [
        ("2|2,3", "2", "default_pg", [2, 3], 2),
        ("0|0,1,2,3", "0", "default_pg", [0, 1, 2, 3], 4),
    ]
    assert groups.odd == 0


def test_configuration_by_name_as_older_versions_write_it() -> None:
    groups = Groups({"pg_config": {"0": entry("0", [0, 1])}})
    assert [group.key for group in groups.configured] == ["0|0,1"]


def test_ranks_left_out_are_those_of_the_job_when_it_has_as_many() -> None:
    whole = Groups({"world_size": 2, "pg_config": [entry("0")]})
    part = Groups({"world_size": 4, "pg_config": [entry("5")]})
    assert whole.configured[0].key == "0|0,1"
    assert (part.configured[0].key, part.configured[0].size) == ("5", 2)


def test_a_mention_finds_the_configured_group_though_its_ranks_are_cut_short() -> None:
    everyone = list(range(64))
    groups = Groups({"world_size": 64, "pg_config": [entry("0", everyone, pg_size=64)]})
    cut = Mentioned("0", "default_pg", f"[{', '.join(map(str, range(30)))}, ...]", 64)
    assert groups.of(cut) == groups.configured[0].key
    assert groups.frame([groups.of(cut)]).height == 1


def test_a_name_is_not_unique() -> None:
    groups = Groups({"pg_config": [entry("7", [0, 1]), entry("7", [2, 3])]})
    assert groups.of(Mentioned("7", ranks="[2, 3]")) == "7|2,3"
    assert groups.of(Mentioned("7", ranks="[4, 5]")) == "7|4,5"
    assert groups.of(Mentioned("7", size=2)) == "7"  # either of them


def test_ranks_from_their_first_and_stride() -> None:
    groups = Groups(None)
    assert groups.of(Mentioned("4", ranks="[1, 9, ...]", size=3, first=1, stride=8)) == "4|1,9,17"


def test_nothing_stated_is_no_group() -> None:
    assert Groups({}).of(Mentioned()) == ""


@pytest.mark.parametrize(
    ("config", "odd"),
    [
        (None, 0),
        ([], 0),
        ("nonsense", 1),
        (7, 1),
        ([None, 3, "x", []], 4),
        ([{}], 1),
        ([entry(["0"], [0, 1])], 1),
        ([entry("0", "garbage")], 1),
        ([entry("0", [0, "x"])], 1),
        ([entry("0", "[0, 1, ...]")], 0),
        ([entry("0", [0, 1], pg_size=-5, pg_desc=[], backend_config={})], 0),
    ],
)
def test_nonsense_is_counted(config: object, odd: int) -> None:
    assert Groups({"pg_config": config, "world_size": "four", "backend": ["x"]}).odd == odd


@pytest.mark.parametrize("info", [None, 3, "x", [], {"pg_config": {}}, {"world_size": -1}, {"world_size": 10**30}])
def test_a_head_that_is_empty(info: object) -> None:
    groups = Groups(info)
    assert (groups.world_size, groups.configured, groups.backend) == (-1, (), "")
    assert groups.frame().is_empty()
