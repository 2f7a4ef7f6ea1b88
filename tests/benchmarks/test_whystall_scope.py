"""The facts that an answer of whystall states."""

from __future__ import annotations

from typing import Any

from benchmarks.faults.adapters.whystall_rules import scope


def answer(**attributes: str) -> dict[str, Any]:
    finding = {"id": "F1", "subject": {"pid": 1, "tid": 1}, "attributes": attributes}
    return {"culprit": None, "chain": ["F1"], "assessments": [], "cause": None, "findings": [finding]}


def test_a_chain_states_no_objects_on_the_way() -> None:
    chain = "train (1) queue at take (train.py:3) < worker (7 of 5) file read ext4 at read (train.py:9) of /data/x"
    found = scope(answer(chain=chain, root_by="worker (7 of 5)", object="10.0.0.2:80", root_object="/data/y"))
    assert found["pid"] == ["1", "7", "5"]
    assert found["file"] == ["/data/y"]
    assert found["peer"] == ["10.0.0.2:80"]
    assert not {"device", "cgroup"} & found.keys()
    assert chain in found["code"]
