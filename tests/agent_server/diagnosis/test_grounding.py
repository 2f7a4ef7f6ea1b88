"""What is left of a model's conclusion, the verdict it leads to, and what the model is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import ValidationError
from recordings import Scene
from solving import new_case
from test_relations import id_of, solved

from whystall.agent_server.diagnosis import grounding, rules
from whystall.agent_server.diagnosis.grounded_conclusion import Grounded, feedback, ground, settle
from whystall.agent_server.diagnosis.grounding.model_conclusion import CLAIMS_LIMIT, ModelConclusion, parameters
from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.agent_server.diagnosis.verdict import Conclusion
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Lang, Verdict
from whystall.prompts.fence import Fence
from whystall.prompts.render import words

SYNC = "sync_checkpoint_write"
TRUE = {"relation": "is_symptom_of", "subject": "file.slow_sync", "object": SYNC}
FALSE = {"relation": "causes", "subject": "process.io_wait", "object": "file.slow_sync"}


def concluded(name: str, cause: str, *claims: dict[str, str], **more: Any) -> tuple[Grounded, Conclusion]:
    case, _ = solved(name)
    made = [{key: id_of(case, text) if key != "relation" else text for key, text in one.items()} for one in claims]
    grounded = ground(ModelConclusion.model_validate({"cause": cause, "claims": made, **more}), case)
    return grounded, settle(case, grounded)


def own(name: str = "checkpoint") -> Conclusion:
    return solved(name)[0].conclude()


def test_a_supported_conclusion_changes_nothing_of_the_verdict() -> None:
    grounded, settled = concluded("checkpoint", SYNC, TRUE, remedies=["async_checkpoint"])
    assert grounded.struck == []
    assert settled == own()
    assert [claim.relation for claim in grounded.claims] == ["is_symptom_of"]
    assert grounded.remedies == ["async_checkpoint"]


def test_an_unsupported_relation_is_left_out_and_lowers_a_confirmed_verdict() -> None:
    grounded, settled = concluded("checkpoint", SYNC, TRUE, FALSE)
    assert [(s.code, s.where) for s in grounded.struck] == [("reversed", 2)]
    assert grounded.struck[0].what["see"]["kind"] == "file.slow_sync"
    assert [claim.relation for claim in grounded.claims] == ["is_symptom_of"]
    assert (settled.verdict, settled.cause, settled.missing) == (Verdict.LIKELY, SYNC, ["model_unsupported"])


@pytest.mark.parametrize(
    "text",
    [
        {"narrative": "Unremarkable backpressure, textbook: the disk is on fire and everybody knows it."},
        {"narrative": "every write takes 907 ms"},
        {"narrative": "it waits {F24.no_such_value}, or {F999.window_pct}"},
        {"hypothesis": "another job writes the file 99 times"},
        {"remedies": ["more_cpus"]},
        {"proposed": ["pray"]},
    ],
    ids=str,
)
def test_wording_never_lowers_a_verdict(text: dict[str, Any]) -> None:
    grounded, settled = concluded("checkpoint", SYNC, TRUE, **text)
    assert settled == own()
    assert len(grounded.claims) == 1
    assert not grounded.lowers


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("It waits {F24.window_pct} in fsync of {F24.path}, {F24}.", None),
        ("p99 of ext4 on chk_10.bin, F24, v2 and /data/run7", None),
        ("It waits {F24.share}.", "placeholder"),
        ("It waits {window_pct}.", "placeholder"),
        ("It waits 60.9 %.", "literal"),
        ("它等待了93%的时间。", "literal"),
        ("It waits -3 s.", "literal"),
    ],
)
def test_numbers_of_a_narrative_come_from_findings(text: str, code: str | None) -> None:
    grounded, _ = concluded("checkpoint", SYNC, narrative=text)
    assert grounded.codes == ([] if code is None else [code])
    assert grounded.unverified.narrative == (text if code is None else "")
    if code == "placeholder" and "F24" in text:
        assert "F24.window_pct" in grounded.struck[0].what["valid"]


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("quantum_flux", "unknown_cause"),
        ("memory_reclaim", "contradicted"),
        ("slow_device", "contradicted"),
        ("slow_rank", "contradicted"),
    ],
)
def test_a_cause_that_the_evidence_does_not_allow_is_dropped(cause: str, code: str) -> None:
    grounded, settled = concluded("checkpoint", cause, TRUE)
    assert grounded.codes == [code]
    assert grounded.cause is None
    assert (settled.cause, settled.verdict) == (SYNC, Verdict.LIKELY)


@pytest.mark.parametrize("cause", ["unknown", "", "healthy", "None", "other"])
def test_who_names_no_cause_of_the_catalogue_accuses_nobody_and_clears_nobody(cause: str) -> None:
    more = {"hypothesis": "gremlins in the cable"} if cause == "other" else {}
    grounded, settled = concluded("checkpoint", cause, TRUE, **more)
    assert grounded.struck == []
    assert settled == own()
    assert grounded.unverified.hypothesis == more.get("hypothesis", "")


def test_a_healthy_verdict_stays_what_it_is() -> None:
    grounded, settled = concluded("background_checkpoint", SYNC, {**TRUE, "subject": "-thread.time@4000"})
    assert "contradicted" in grounded.codes
    assert (settled.verdict, settled.missing) == (Verdict.HEALTHY, [])


def test_remedies_of_other_causes_are_left_out() -> None:
    grounded, _ = concluded("checkpoint", SYNC, TRUE, remedies=["more_cpus", "async_checkpoint"])
    assert grounded.codes == ["remedy"]
    assert grounded.remedies == ["async_checkpoint"]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_model_is_told_what_is_wrong_in_a_fence(lang: Lang) -> None:
    fence = Fence()
    grounded, _ = concluded("checkpoint", "quantum_flux", TRUE, FALSE, narrative="it takes 69.9 ms")
    text = feedback(grounded, lang, fence)
    quoted = re.findall(rf"{fence.opening}\n(.*)\n{fence.closing}", text)
    wrong, cause, numbers = (json.loads(part) for part in quoted)
    assert (wrong["claim"]["relation"], wrong["see"]["kind"]) == ("causes", "file.slow_sync")
    assert (cause, numbers) == ("quantum_flux", ["69.9"])
    assert "69.9" not in text.replace(quoted[2], "")
    assert feedback(Grounded(), lang, fence) == ""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_code_has_words(lang: Lang) -> None:
    room = Path(str(grounding.__file__)).parent
    sources = [(room / name).read_text("utf-8") for name in ("../grounded_conclusion.py", "relations.py")]
    codes = {
        c for text in sources for c in re.findall(r'(?:Fault|Struck|None,) ?\(?"([a-z_]+)"| else "([a-z_]+)"', text)
    }
    flat = {code for pair in codes for code in pair if code}
    assert flat >= {"no_finding", "share", "contradicted", "unknown_cause", "placeholder", "reversed", "not_named"}
    assert flat <= words(lang)["struck"].keys()
    assert (
        words(lang)["struck"].keys() - {"number", "name", "subject", "advice"}
        == words(lang)["objections"]["codes"].keys()
    )


def test_the_shape_is_what_models_send() -> None:
    one = {"relation": "causes", "subject": "[f1]", "object": "F2."}
    said = ModelConclusion.model_validate({"cause": " x ", "claims": [one, {**one, "subject": "F1", "object": "F2"}]})
    assert [(c.subject, c.object) for c in said.claims] == [("F1", "F2")]
    for bad in (
        {"claims": [{**one, "relation": "blames"}]},
        {"claims": [{**one, "share_pct": 101}]},
        {"claims": [{**one, "share_pct": float("nan")}]},
        {"claims": [{**one, "role": "villain"}]},
        {"claims": [{**one, "subject": f"F{number}"} for number in range(CLAIMS_LIMIT + 1)]},
        {"claims": "F1"},
        {"cause": "other"},
        {"chain": []},
        {"verdict": "healthy"},
        {"checks": [{"tool": "offcputime", "arguments": {"out": "/tmp/x"}}]},
    ):
        with pytest.raises(ValidationError):
            ModelConclusion.model_validate(bad)
    schema = parameters(load_causes())
    assert set(schema["properties"]["cause"]["enum"]) == {*load_causes(), "other", "unknown"}
    assert "$ref" not in json.dumps(schema)


def test_a_preferred_rival_is_named_with_the_other_left_open() -> None:
    """Two causes of the same size: the code cannot tell, the model may say which; neither is then confirmed."""
    scene = Scene().thread(user=30, system=30, blocked=30)
    for second in range(12):
        scene.call(second + 0.1, 300, "getrandom", waits=0)
        scene.call(second + 0.5, 300, "pread64", "/nfs/data/shard_1.tar", size=1 << 20)
    case = new_case(RecordedObserver(scene.build()), "slow")
    anyio.run(lambda: rules.finish(case))
    first = case.conclude()
    rival = next(a.cause for a in case.assess() if a.cause != first.cause and a.explained_pct > 0)
    settled = settle(case, ground(ModelConclusion(cause=rival), case))
    assert "rivals_open" in first.missing
    assert settled.cause == rival
    assert settled.verdict is not Verdict.CONFIRMED
    assert "rivals_open" in settled.missing
