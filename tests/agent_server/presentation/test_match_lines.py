"""Texts of matches: known or similar, how often, and which checks are left."""

from __future__ import annotations

from typing import Any

import pytest
from making import checkpoint, match, victim

from whystall.agent_server.presentation.match_lines import OPTIONS, command, match_texts
from whystall.agent_server.presentation.texts import diagnosis_text, hits_text
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.features import TYPES
from whystall.knowledge_base.models import Lang, Match, Record, Words
from whystall.prompts.render import words
from whystall.tools.contract.params import parse_params
from whystall.tools.toolbox import registry

LANGS: tuple[Lang, ...] = ("en", "zh")


def text(suffix: str = "txt", lang: Lang = "en", **changes: Any) -> str:
    [found] = match_texts([match().model_copy(update=changes)], suffix, lang, victim())
    return "\n".join([found.head, *found.more])


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"known": True}, "known incident: "),
        ({}, "similar, not proven the same: "),
        ({"state": "draft"}, "similar, and an unreviewed draft: "),
        ({"state": "draft", "known": True}, "similar, and an unreviewed draft: "),
        ({"weak": True, "how": "text"}, "nearest, but it shares too little to be an answer: "),
    ],
)
def test_a_match_starts_with_its_sort(changes: dict[str, Any], first: str) -> None:
    assert text(**changes).startswith(first)


def test_a_known_match_shows_recurrence_and_fix() -> None:
    fix = Words(en="moved to NVMe", zh="移到 NVMe")
    said = text(known=True, occurrences=3, last_seen="2026-01-02T03:04:05Z", fix=fix)
    assert "seen 3 times, last on 2026-01-02" in said
    assert "what solved it: moved to NVMe" in said
    assert "seen once, on 2026-01-02" in text(last_seen="2026-01-02T03:04:05Z")
    assert "seen" not in text()  # the literature counts no occurrences here


def test_feedback_is_shown_and_a_flag_warns() -> None:
    assert "helped in 3 of 4 cases" in text(record=Record(helped=3, wrong=1))
    assert "rated wrong in 4 of 5 cases" in text(record=Record(helped=1, wrong=4, flagged=True))


def test_checks_that_are_left_come_with_their_commands() -> None:
    said = text(unchecked=["biolatency", "slow_node_check"])
    assert f"whystall run biolatency --pid {victim().pid}" in said
    assert "whystall run slow_node_check --traces DIR" in said
    assert "whystall run" not in text(unchecked=["biolatency"], how="text")  # a question has run nothing at all


@pytest.mark.parametrize("tool", registry().all(), ids=lambda tool: tool.name)
def test_every_check_has_a_command_with_options_it_takes(tool: Any) -> None:
    given = command(tool.name, None).split()[3:]
    names = {name.removeprefix("--") for name in given[::2]} - {"from"}
    assert names <= set(tool.params.model_fields)
    if tool.name not in OPTIONS:
        assert parse_params(tool.params, {"pid": 1})


@pytest.mark.parametrize("lang", LANGS)
def test_every_type_of_feature_has_words(lang: Lang) -> None:
    said = words(lang)
    assert {*TYPES, "fault", "finding", "cause", "cause+op", "kind", "word"} <= set(said["shared"])
    assert all("{}" in said["shared"][name] for name in TYPES)


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("suffix", ["txt", "md"])
def test_text_of_a_card_stays_inert(suffix: str, lang: Lang) -> None:
    evil = "x\x1b[31m{id} [a](http://b) `c`\n# head"
    said = text(
        suffix,
        lang,
        title=Words(en=evil, zh=evil),
        fix=Words(en=evil, zh=evil),
        shared=[f"op:{evil}", f"nonsense:{evil}"],
        incident=evil,
        last_seen=evil,
        unchecked=[evil],
    )
    assert "\x1b" not in said
    assert "\n#" not in said


def test_hits_that_answer_nothing_say_so() -> None:
    weak = match().model_copy(update={"weak": True, "how": "text"})
    assert hits_text([weak], "en").startswith("No known incident answers this. The nearest:")
    assert hits_text([weak, match()], "en").startswith("Past incidents that resemble the question:")
    assert hits_text([], "en").strip() == "No known incident matches."


@pytest.mark.parametrize("lang", LANGS)
def test_a_diagnosis_shows_its_matches(lang: Lang) -> None:
    many: list[Match] = [match().model_copy(update={"unchecked": ["biolatency"], "known": True})]
    said = diagnosis_text(checkpoint(matches=many), load_causes(), lang)
    assert words(lang)["matching"]["known"] in said
    assert "whystall run biolatency --pid" in said


@pytest.mark.parametrize(
    ("shared", "because"),
    [
        (
            ["cause:cpu_contention", "wait:cpu", "kind:cpu.neighbour"],
            "same cause, the same kind of wait (without a CPU)",
        ),
        (["kind:sched.runqueue_delay"], "the target is ready to run but waits for a CPU"),
        (["root:running", "role:data_loader"], "at the end of the chain: runs, in code for loading of data"),
    ],
)
def test_what_is_shared_is_in_words(shared: list[str], because: str) -> None:
    assert text(shared=shared).endswith(f"shared: {because}")
