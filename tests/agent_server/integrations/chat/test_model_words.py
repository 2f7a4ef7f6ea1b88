"""A model's words in a chat: every value is one that its functions returned."""

from __future__ import annotations

import pytest

from whystall.agent_server.integrations.chat.model_words import LIMIT, read

RESULTS = [
    {"job": {"name": "llama <!channel>_*x*", "pid": 4200}, "ranks": [{"rank": 3, "pid": 4242}], "started": True},
    {"ticket": {"ticket": "12", "state": "open", "explained_pct": 61.23, "runs_for_s": 7200, "title": ""}},
]


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("It is pid {1.job.pid}.", "It is pid 4200."),
        ("Rank {1.ranks.0.rank} is pid { 1.ranks.0.pid }.", "Rank 3 is pid 4242."),
        ("工单 {2.ticket.ticket} 是 {2.ticket.state}。", "工单 12 是 open。"),
        (
            "It explains {2.ticket.explained_pct} and runs for {2.ticket.runs_for_s}.",
            "It explains 61.2 % and runs for 2 h.",
        ),
        ("Which one do you mean?", "Which one do you mean?"),
    ],
)
def test_values_of_results_are_filled_in(sentence: str, shown: str) -> None:
    words = read(sentence, RESULTS)
    assert words.rejected == []
    assert str(words.kept[0]).startswith(shown)


@pytest.mark.parametrize(
    "sentence",
    [
        "It is pid 4200.",
        "Everything is healthy.",
        "zhang is on call.",
        "I have resolved {2.ticket.ticket} after 3 tries.",
        "{1.job} is slow.",
        "{1.started} is so.",
        "{1.ranks.7.pid} is slow.",
        "{1.ranks.-1.pid} is slow.",
        "{3.job.pid} is slow.",
        "{0.job.pid} is slow.",
        "{job.pid} is slow.",
        "{2.ticket.title} it is.",
        "{1.job.__class__} is slow.",
        "{1.job.pid} is at https://evil.example/",
        "[{1.job.pid}](http://evil.example)",
        "Will you see www.evil.example?",
        "工单有 9 个吗？",
    ],
)
def test_a_sentence_without_them_is_not_shown(sentence: str) -> None:
    assert read(sentence, RESULTS).rejected == [sentence]


def test_each_sentence_is_read_by_itself_and_is_inert() -> None:
    words = read("- {1.job.name} *runs* @all.\n- It waits for 42 ms.\n\n2. Shall I go on?", RESULTS)
    first, second = words.kept
    assert words.rejected == ["It waits for 42 ms."]
    assert not set("<>_*@") & set("".join(first.split("`")[::2]))
    assert second == "Shall I go on?"
    assert sum(map(len, read("Which one? " * 1000, []).kept)) <= LIMIT
