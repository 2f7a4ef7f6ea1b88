"""What is left of a model's conclusion, the verdict it leads to, and what the model is told."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import anyio
import pytest
from pydantic import ValidationError
from recordings import Scene
from solving import new_case
from test_grounding_claims import cited, solved

from whystall.agent_server.diagnosis import grounding, rules
from whystall.agent_server.diagnosis.grounded_conclusion import Grounded, feedback, ground, settle
from whystall.agent_server.diagnosis.grounding.model_conclusion import CLAIM_LIMIT, Link, ModelConclusion, parameters
from whystall.agent_server.diagnosis.grounding.numerals import read
from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.agent_server.diagnosis.verdict import Conclusion
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.components import load_components, named
from whystall.knowledge_base.lexicon import plain_word
from whystall.knowledge_base.models import Lang, Verdict
from whystall.prompts.fence import Fence
from whystall.prompts.render import words
from whystall.tools.contract.kinds import KINDS

TRUE = "The main thread spends 60.9 % of the window in fsync of chk_*.bin."
FALSE = "The main thread spends 69.9 % of the window in fsync of chk_*.bin."


def concluded(case: str, cause: str, *claims: str, remedies: tuple[str, ...] = ()) -> tuple[Grounded, Conclusion]:
    held = solved(case)
    chain = [Link(claim=claim, findings=[cited(held, "file.slow_sync")]) for claim in claims]
    grounded = ground(ModelConclusion(cause=cause, chain=chain, remedies=list(remedies)), held)
    return grounded, settle(held, grounded)


def test_a_supported_conclusion_changes_nothing_of_the_verdict() -> None:
    grounded, settled = concluded("checkpoint", "sync_checkpoint_write", TRUE, remedies=("async_checkpoint",))
    assert grounded.struck == []
    assert settled == solved("checkpoint").conclude()
    assert [claim.text for claim in grounded.story] == [TRUE]
    assert grounded.remedies == ["async_checkpoint"]


def test_a_struck_claim_is_left_out_and_lowers_a_confirmed_verdict() -> None:
    grounded, settled = concluded("checkpoint", "sync_checkpoint_write", TRUE, FALSE)
    assert [(s.code, s.where, s.what) for s in grounded.struck] == [("number", 2, "69.9 %")]
    assert [claim.text for claim in grounded.story] == [TRUE]
    assert settled.verdict is Verdict.LIKELY
    assert settled.cause == "sync_checkpoint_write"
    assert settled.missing == ["model_unsupported"]


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
    assert settled.cause == "sync_checkpoint_write"
    assert settled.verdict is Verdict.LIKELY


@pytest.mark.parametrize("cause", ["unknown", "", "healthy", "None"])
def test_who_names_no_cause_accuses_nobody_and_clears_nobody(cause: str) -> None:
    grounded, settled = concluded("checkpoint", cause, TRUE)
    assert grounded.struck == []
    assert settled == solved("checkpoint").conclude()


def test_a_healthy_verdict_stays_what_it_is() -> None:
    grounded, settled = concluded("background_checkpoint", "sync_checkpoint_write", FALSE)
    assert set(grounded.codes) >= {"contradicted"}
    assert settled.verdict is Verdict.HEALTHY
    assert settled.missing == []


def test_remedies_of_other_causes_are_struck() -> None:
    grounded, _ = concluded("checkpoint", "sync_checkpoint_write", TRUE, remedies=("more_cpus", "async_checkpoint"))
    assert grounded.codes == ["remedy"]
    assert grounded.remedies == ["async_checkpoint"]


def test_no_look_is_taken_for_an_examination_that_was_none() -> None:
    """Of what no tool looked at, nothing may be said, good or bad."""
    held = solved("checkpoint")
    for claim in ("The network is not congested.", "No GPU waits."):
        said = ModelConclusion(chain=[Link(claim=claim, findings=[cited(held, "file.slow_sync")])])
        assert ground(said, held).codes == ["not_examined"], claim


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_model_is_told_what_is_wrong_in_a_fence(lang: Lang) -> None:
    fence = Fence()
    grounded, _ = concluded("checkpoint", "quantum_flux", TRUE, FALSE)
    text = feedback(grounded, lang, fence)
    quoted = re.findall(rf"{fence.opening}\n(.*)\n{fence.closing}", text)
    assert [json.loads(part) for part in quoted] == ["69.9 %", "quantum_flux"]
    assert "69.9" not in text.replace(quoted[0], "")
    assert feedback(Grounded(), lang, fence) == ""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_code_has_words(lang: Lang) -> None:
    room = Path(str(grounding.__file__)).parent
    sources = [(room / name).read_text("utf-8") for name in ("../grounded_conclusion.py", "claims.py")]
    codes = {code for text in sources for code in re.findall(r'return (?:None, )?\(?"([a-z_]+)"(?: if|,|\n)', text)}
    known = words(lang)["struck"].keys()
    assert codes >= {"number", "name", "contradicted", "unknown_cause", "advice", "no_finding"}
    assert codes <= known
    assert known == words(lang)["objections"]["codes"].keys()


def test_the_shape_is_what_models_send() -> None:
    said = ModelConclusion.model_validate({"cause": " x ", "chain": [{"claim": "a", "findings": "F1, f2"}]})
    assert said.chain[0].findings == ["F1", "F2"]
    assert Link(claim="a", findings=["[F3]", "f3"]).findings == ["F3"]
    assert Link(claim="a", findings=["all"]).findings == ["all"]
    for bad in (
        {"chain": [{"claim": "x" * (CLAIM_LIMIT + 1), "findings": ["F1"]}]},
        {"chain": [{"claim": "x", "findings": [f"F{n}" for n in range(7)]}]},
        {"chain": [{"claim": "x", "findings": [1]}]},
        {"chain": "F1"},
        {"verdict": "healthy"},
    ):
        with pytest.raises(ValidationError):
            ModelConclusion.model_validate(bad)
    schema = parameters(["a", "b"])
    assert schema["properties"]["cause"]["enum"] == ["a", "b", "unknown"]
    assert "$ref" not in json.dumps(schema)


def test_a_preferred_rival_is_named_with_the_other_left_open() -> None:
    """Two causes of the same size: the code cannot tell, the model may say which; neither is then confirmed."""
    scene = Scene().thread(user=30, system=30, blocked=30)
    for second in range(12):
        scene.call(second + 0.1, 300, "getrandom", waits=0)
        scene.call(second + 0.5, 300, "pread64", "/nfs/data/shard_1.tar", size=1 << 20)
    case = new_case(RecordedObserver(scene.build()), "slow")
    anyio.run(lambda: rules.finish(case))
    own = case.conclude()
    rival = next(a.cause for a in case.assess() if a.cause != own.cause and a.explained_pct > 0)
    settled = settle(case, ground(ModelConclusion(cause=rival), case))
    assert "rivals_open" in own.missing
    assert settled.cause == rival
    assert settled.verdict is not Verdict.CONFIRMED
    assert "rivals_open" in settled.missing


@pytest.mark.parametrize(
    ("text", "dim", "value"),
    [
        ("1.3k calls", "bare", 1300),
        ("1,234,567 bytes", "size", 1234567),
        ("1 min 30 s", "time", 90),
        ("2.5e-3 s", "time", 0.0025),
        ("1分30秒", "time", 30),
        ("九百毫秒", "time", 0.9),
        ("三万二千次", "count", 32000),
        ("百分之六十", "pct", 60),
        ("六成", "pct", 60),
        ("twenty-five seconds", "time", 25),
        ("two hundred milliseconds", "time", 0.2),
        ("half a second", "time", 0.5),
        ("1２ ms", "time", 0.012),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, dim: str, value: float) -> None:
    said = read(unicodedata.normalize("NFKC", text))[-1]
    assert said.dim == dim
    assert any(low <= value <= high and high - low <= 0.25 * value + 1 for low, high in said.spans)


def test_ranges_share_their_unit_and_ids_are_no_amounts() -> None:
    assert [said.dim for said in read("0.8 to 1.2 s")] == ["time", "time"]
    assert [said.dim for said in read("CPUs 0-3, rank 7, pid 4000, line 212")] == ["cpu", "cpu", "rank", "pid", "line"]
    assert read("kernel 6.18.0 and 10.0.0.7") == []
    assert read("two findings agree, one of them") == []


def test_components_cover_every_kind_and_their_words_are_found() -> None:
    patterns = {kind for component in load_components().values() for kind in component.of(KINDS)}
    assert {kind for kind in KINDS if kind.partition(".")[0] in ("file", "disk", "block", "memory", "irq")} <= patterns
    for name, component in load_components().items():
        for word in (*component.en, *component.zh):
            assert name in {found for found, _ in named(f"x {word} y")}, (name, word)


def test_the_lexicon_knows_words_and_no_programs() -> None:
    for word in ("stalled", "stalls", "running", "slower", "unsaturated", "busiest", "regularly", "thrashes", "writes"):
        assert plain_word(word), word
    for name in (
        "nginx",
        "python",
        "redis",
        "mysqld",
        "kswapd",
        "rsync",
        "malloc",
        "postgres",
        "systemd",
        "cron",
        "zqx",
    ):
        assert not plain_word(name), name


def test_the_causes_of_the_schema_are_those_of_the_catalogue() -> None:
    assert set(parameters(load_causes())["properties"]["cause"]["enum"]) == {*load_causes(), "unknown"}
