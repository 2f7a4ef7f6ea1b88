"""Choice of past incidents by a language model: how often is the right card first with it, and does it abstain?

    WHYSTALL_LLM_BASE_URL=... WHYSTALL_LLM_MODEL=... python -m benchmarks.incident_rerank REPORTS LABELS
        [--symptom N] [--english N] [--chinese N] [--without N] [--seed N] [--skip ID] [--parallel N] [--recall]
        [--note TEXT] [--out FILE]

REPORTS and LABELS as in `benchmarks.incident_search`. So many reports with a card are drawn for each kind of question,
each report for one kind only, so that no question helps with another; of those without a card ``--without``, half of
them asked by their symptom, a quarter in other words, a quarter in Chinese. The model is asked as a search asks it
(`incident_search.judge`), in the language of the question, among the first ``rerank_cards`` cards that words find. It
may be any server of chat completions. ``--recall`` asks no model: it measures how often the right card is among the
first 5, 10, 20 and 40, which bounds what a model can choose.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import anyio

from benchmarks.common import Report, Row, publish
from benchmarks.incident_search import Query, labels, padding, queries, read_lines
from whystall.agent_server.incident_search.judge import choose_card
from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.llm.wire import LlmError
from whystall.agent_server.settings.load import load_llm
from whystall.agent_server.settings.sections.llm import LlmSettings
from whystall.knowledge_base import text_search
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.indexing import stored_cards
from whystall.knowledge_base.models import Incident
from whystall.knowledge_base.shares import share
from whystall.knowledge_base.store import KnowledgeBase

TITLE = "Past incidents: the right card among the first, and the choice of a language model"
KINDS = {"symptom": "title and symptom", "paraphrase_en": "in other words", "paraphrase_zh": "in other words, Chinese"}
_RECALL = (1, 5, 10, 20, 40)
_MOST = 100


class Asked(NamedTuple):
    """A question, the cards that words find, and the model's choice: an id, None for none. `failed`: no answer."""

    query: Query
    found: list[str]
    weak: bool
    chosen: str | None = None
    failed: bool = False


def sample(asked: Sequence[Query], sizes: Mapping[str, int], without: int, seed: int) -> list[Query]:
    """Return the drawn questions in random order, one of each report."""
    dice = random.Random(seed)
    drawn: list[Query] = []
    with_card = sorted({query.id for query in asked if query.right})
    others = sorted({query.id for query in asked if not query.right})
    for ids, counts in (
        (with_card, sizes),
        (others, dict(zip(KINDS, (without - 2 * (without // 4), without // 4, without // 4), strict=True))),
    ):
        dice.shuffle(ids)
        left = iter(ids)
        for kind, count in counts.items():
            chosen = set(itertools.islice(left, count))
            drawn += [query for query in asked if query.kind == kind and query.id in chosen]
    dice.shuffle(drawn)
    return drawn


def found(file: Database, query: Query, limit: int) -> Asked:
    """Return the question with the first `limit` cards that words find."""
    matches = text_search.search(file, query.text, limit)
    return Asked(query, [match.incident for match in matches], not matches or matches[0].weak)


async def ask(
    settings: LlmSettings, asked: Sequence[Asked], cards: Mapping[str, Incident], parallel: int
) -> list[Asked]:
    """Return `asked` with the choices of the model, which gets at most `parallel` questions at a time."""
    limiter = anyio.CapacityLimiter(parallel)
    answers: dict[int, Asked] = {}

    async def one(at: int) -> None:
        question = asked[at]
        lang = "zh" if question.query.kind == "paraphrase_zh" else "en"
        async with limiter, ChatClient(settings) as model:
            try:
                chosen = await choose_card(model, question.query.text, [cards[id] for id in question.found], lang)
                answers[at] = question._replace(chosen=chosen)
            except LlmError as error:
                print(f"{question.query.kind}: {error}", file=sys.stderr)
                answers[at] = question._replace(failed=True)

    async with anyio.create_task_group() as group:
        for at in range(len(asked)):
            group.start_soon(one, at)
    return [answers[at] for at in range(len(asked))]


def recall_rows(asked: Sequence[Asked], kinds: Mapping[str, str]) -> list[Row]:
    """Return how often a right card is among the first that words find."""
    rows = []
    for kind, what in kinds.items():
        mine = [one for one in asked if one.query.kind == kind and one.query.right]
        for most in _RECALL:
            hits = sum(bool(one.query.right.intersection(one.found[:most])) for one in mine)
            rows.append(
                Row(
                    f"{what}, {len(mine)} questions with a card: right one among the first {most}",
                    _share(hits, len(mine)),
                )
            )
    return rows


def choice_rows(asked: Sequence[Asked], compared: int) -> list[Row]:
    """Return how often the model's choice is right, beside the order by words of the same questions."""
    rows = []
    for kind, what in KINDS.items():
        mine = [one for one in asked if one.query.kind == kind and one.query.right]
        if not mine:
            continue
        title = f"{what}, {len(mine)} questions with a card"
        counts: dict[str, tuple[Callable[[Asked], bool], Callable[[Asked], bool] | None]] = {
            "hit@1": (
                lambda one: _first(one) in one.query.right,
                lambda one: one.found[:1] != [] and one.found[0] in one.query.right,
            ),
            f"right one among the {compared} compared": (
                lambda one: bool(one.query.right.intersection(one.found)),
                None,
            ),
            "chosen right": (
                lambda one: one.chosen in one.query.right,
                lambda one: not one.weak and one.found[0] in one.query.right,
            ),
            "chosen wrong": (
                lambda one: one.chosen is not None and one.chosen not in one.query.right,
                lambda one: not one.weak and one.found[0] not in one.query.right,
            ),
        }
        for name, (ours, words) in counts.items():
            peer = "" if words is None else _share(sum(map(words, mine)), len(mine))
            rows.append(Row(f"{title}: {name}", _share(sum(map(ours, mine)), len(mine)), peer))
    without = [one for one in asked if not one.query.right]
    if without:
        silent = _share(sum(one.chosen is None for one in without), len(without))
        rows.append(
            Row(
                f"{len(without)} questions without a card: abstains",
                silent,
                _share(sum(one.weak for one in without), len(without)),
            )
        )
    return rows


def _first(one: Asked) -> str | None:
    return one.chosen if one.chosen is not None else next(iter(one.found), None)


def _share(hits: int, of: int) -> str:
    value = share(hits, of)
    return "-" if value is None else f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})"


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--symptom", type=int, default=30, help="reports asked by their symptom")
    parser.add_argument("--english", type=int, default=15, help="reports asked in other words")
    parser.add_argument("--chinese", type=int, default=15, help="reports asked in Chinese")
    parser.add_argument("--without", type=int, default=20, help="reports without a card")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip", action="append", default=[], metavar="ID", help="report to leave out")
    parser.add_argument("--parallel", type=int, default=4, help="questions at a time (default: %(default)s)")
    parser.add_argument("--recall", action="store_true", help="only where the right card is, without a model")
    parser.add_argument("--note", action="append", default=[], help="remark about model and reports")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    reports = [report for report in read_lines(options.reports) if report["id"] not in options.skip]
    every = list(queries(reports, labels(options.labels), {}, padding(None)))
    report = Report(TITLE, notes=list(options.note))
    settings = None if options.recall else load_llm()
    compared = _MOST if settings is None else settings.rerank_cards
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as directory:
        path = Path(directory, "k.db")
        KnowledgeBase(path).close()  # the curated cards
        with closing(Database(path)) as file:
            cards = {card.id: card for card in stored_cards(file)}
            wanted = {**KINDS, "evidence": "with all evidence"}
            report.rows += recall_rows(
                [found(file, query, max(_RECALL)) for query in every if query.kind in wanted], wanted
            )
            if settings is not None:
                sizes = dict(zip(KINDS, (options.symptom, options.english, options.chinese), strict=True))
                drawn = [found(file, q, compared) for q in sample(every, sizes, options.without, options.seed)]
                asked = anyio.run(ask, settings, drawn, cards, options.parallel)
                report.rows += choice_rows(asked, compared)
                failed = sum(one.failed for one in asked)
                report.notes.append(
                    f"{len(asked)} questions, drawn with seed {options.seed}; {failed} without a usable answer"
                )
                report.notes.append(
                    "ours: the first card after the model's choice among the cards that words found; where it answers"
                    " none, that of the words; chosen: the model names a card; abstains: it names none. Peer: the order"
                    " by words for the same questions; chosen, abstains: whether its first card is likely enough"
                    " to answer"
                )
    report.notes.append(f"{len(reports)} reports, {len(cards)} cards; in parentheses the 95 % Wilson interval")
    return publish(report, options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
