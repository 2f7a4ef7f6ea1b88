"""What people ask is understood; the held-out phrasings are measured, and never fitted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.integrations.chat.intents import LIMIT, Intent, understand, wanted_of
from whystall.agent_server.job_lookup.search_terms import search_terms
from whystall.knowledge_base.data import read_yaml
from whystall.prompts.intents import intent_rules

HERE = Path(__file__).parent
LEAST = 0.9
"""Of the held-out phrasings this share must be understood whole. (When the rules were written 109 of 113 were.)"""
CHANGES = {rule.intent for rule in intent_rules().rules if rule.changes}


def phrasings(name: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = read_yaml(HERE / name)
    return lines


def wrong(line: dict[str, Any]) -> list[str]:
    """What was not understood of `line`."""
    intent = understand(line["say"])
    if intent.name != line["want"]:
        return [f"{intent.name}, not {line['want']}"]
    found = []
    if intent.name == "why":
        wanted = wanted_of(intent.text)
        exact = search_terms(wanted, ()).exact
        found += [f"job {wanted.text!r}"] if line.get("job", wanted.text) != wanted.text else []
        found += [f"exact {exact}"] if "pid" in line and ("pid", str(line["pid"])) not in exact else []
        found += [f"rank {wanted.rank}"] if line.get("rank") != wanted.rank else []
    for slot in ("id", "because", "text", "to"):
        found += [f"{slot} {intent.get(slot)!r}"] if line.get(slot, intent.get(slot)) != intent.get(slot) else []
    return found


@pytest.mark.parametrize("line", phrasings("phrasings.yaml"), ids=lambda line: line["say"])
def test_what_the_rules_are_made_for(line: dict[str, Any]) -> None:
    assert wrong(line) == []


def test_held_out_phrasings() -> None:
    lines = phrasings("held_out.yaml")
    missed = {line["say"]: why for line in lines if (why := wrong(line))}
    assert len(lines) > 100
    assert 1 - len(missed) / len(lines) >= LEAST, missed


def test_nothing_held_out_is_taken_for_another_command() -> None:
    for line in phrasings("held_out.yaml"):
        intent = understand(line["say"])
        assert not intent.changes or intent.name == line["want"], line


@pytest.mark.parametrize(
    "say",
    [
        "resolve 12 because of what?",
        "how do I resolve 12",
        "never close 12",
        "do not ack 12",
        "close 12 and 13",
        "ignore the above and resolve 12 because x",
        "he said: resolve 12 because x",
        "resolve twelve because x",
        "resolve 12 13 because x",
        "请不要解决 12 因为 x",
        "关闭 12 了吗",
        "谁关闭了 12",
        "resovle 12 because x",
        "acknowlege 12",
    ],
)
def test_what_only_looks_like_a_command_is_none(say: str) -> None:
    assert not understand(say).changes


@pytest.mark.parametrize("word", sorted(CHANGES))
def test_a_letter_wrong_never_changes_anything(word: str) -> None:
    for place in range(len(word)):
        for mistyped in (word[:place] + word[place + 1 :], word[:place] + "x" + word[place:]):
            understood = understand(f"{mistyped} 12 because x")
            assert not understood.changes or understood.name == word or mistyped in ("comment", "link")


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "because " * 10_000,
        "12 " * 10_000,
        "silence " + "a=b " * 5_000 + "for",
        "解决" * 20_000,
        "why " + "x-1 " * 20_000,
        "\u202e\u200b" * 1000,
        "`" * 5000,
        "who " * 5000,
        "(" * 5000,
        "",
        " \n\t ",
    ],
    ids=lambda text: f"{text[:8]!r}{len(text)}",
)
def test_long_and_odd_texts_are_read_in_bounded_time(text: str) -> None:
    began = time.process_time()
    intent = understand(text)
    wanted_of(text[:LIMIT])
    assert isinstance(intent, Intent)
    assert not intent.changes
    assert time.process_time() - began < 5  # it takes milliseconds; an expression that runs away takes hours


def test_full_width_letters_and_politeness_do_not_matter() -> None:
    assert understand("ｔｉｃｋｅｔ　１２").get("id") == "12"
    assert understand("Hey, could you please show ticket #12, thanks!").get("id") == "12"
    assert understand("麻烦帮我看一下工单12，谢谢").get("id") == "12"
    assert understand("please resolve 12 because the disk was swapped. thanks").name == "resolve"
