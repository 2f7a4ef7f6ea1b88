"""Claims about 22 recordings of programs that logged what they waited for.

``blind_claims.json`` has the findings that matter of each recording, and its claims: whether one is true, and why by
the program's log. ``refused``: true, but more than the documentation promises, with the code of the fault. The claims
about the first nine recordings were written by an author who knew only the documentation, the prompts and the findings;
of those, 85 of 90 true ones passed then, and 5 of 90 false ones. The others were written with the code known.

``blind_live_claims.json`` has nine further recordings, with claims that were committed before they were checked. Of the
first six, by an author who did not know the code, 58 of 60 true ones passed then, and 1 of 60 false ones; of the last
three, written after the faults were corrected, 30 of 30 and none of 30.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.diagnosis.grounding.relations import CaseFacts, fault
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Assessment, Claim, Victim
from whystall.tools.contract.findings import Finding

FILES = ("blind_claims.json", "blind_live_claims.json")
RECORDINGS = {
    name: data for file in FILES for name, data in json.loads(Path(__file__).with_name(file).read_text()).items()
}


@cache
def facts(recording: str) -> CaseFacts:
    data = RECORDINGS[recording]
    findings = {f["id"]: Finding.model_validate(f) for f in data["findings"]}
    return CaseFacts(
        findings=findings,
        assessments={a["cause"]: Assessment.model_validate(a) for a in data["assessments"]},
        causes=load_causes(),
        victim=Victim.model_validate(data["victim"]),
        reliable=frozenset(findings.keys() - data["unreliable"]),
        window_ns=dict.fromkeys(findings, data["window_ns"]),
    )


def wrong(recording: str, given: dict[str, Any]) -> str | None:
    claim = Claim.model_validate({k: given[k] for k in given.keys() - {"true", "why", "refused"}})
    found = fault(claim, facts(recording))
    return found and found.code


@pytest.mark.parametrize("recording", RECORDINGS)
def test_true_claims_pass_and_false_ones_do_not(recording: str) -> None:
    claims = RECORDINGS[recording]["claims"]
    assert sum(c["true"] for c in claims) == len(claims) / 2 == 10
    assert [c for c in claims if c["true"] and wrong(recording, c) != c.get("refused")] == []
    assert [c for c in claims if not c["true"] and wrong(recording, c) is None] == []
