"""Evaluate the classification of work orders, compared with scikit-learn, and measure the import of a backlog.

    python -m benchmarks.work_orders [--orders N,N,...] [--peer PYTHON] [--out FILE]

`--peer`: an interpreter with scikit-learn, which is not a dependency of ours.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import Report, Row, publish
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.classify.centroids import work_orders
from whystall.knowledge_base.classify.report import Report as WorkOrder
from whystall.knowledge_base.classify.rules import UNKNOWN
from whystall.knowledge_base.classify.scoring import Tally
from whystall.knowledge_base.questions import questions
from whystall.knowledge_base.shares import Share, share

TITLE = "Work orders: classes beside scikit-learn, and the import of a backlog"
_SEED = 20260301
_GOAL_S = 60.0
_LANGS = ("en", "zh")
# A text and its right categories.
Case = tuple[str, frozenset[str]]

_NOTES = (
    "right: share of all texts with their category (`unknown` is right for texts without enough information); "
    "wrong: with another one; the rest get `unknown`. 95 % Wilson intervals",
    "work orders: one person wrote the labelled texts of both halves and then the rules, without reading answers to "
    "the second half: for texts of others, results will be worse. Questions: written earlier for other purposes, from "
    "accounts of incidents; their category is that of the cause of the incidents that answer them, and questions "
    "without an answer are left out; rules and thresholds were changed for the first half only",
    "peer: scikit-learn's TfidfVectorizer (characters, 2 to 4, within words) and LinearSVC, trained on the tuned work "
    "orders, from which our words come too; it always names a class, `unknown` being one. It has no catalogue of words "
    "and no past incidents: with so few examples, the comparison shows their effect",
)

_PEER = """
import json, sys
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
given = json.load(sys.stdin)
out = {}
for name, model in (("svm", LinearSVC(C=1.0, random_state=0)), ("centroid", NearestCentroid())):
    made = make_pipeline(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True), model)
    made.fit([text for text, _ in given["train"]], [label for _, label in given["train"]])
    out[name] = [list(made.predict(texts)) for texts in given["tests"]]
json.dump(out, sys.stdout)
"""


def run(counts: Sequence[int], peer: str | None) -> Report:
    """Classify the labelled texts and import backlogs of `counts` work orders."""
    report = Report(TITLE, [], list(_NOTES))
    with tempfile.TemporaryDirectory() as directory:
        with Stores(Path(directory) / "k.db") as kb:
            sets = dict(_sets(kb))
            theirs = _peer(peer, list(sets.values()))
            if theirs is None:
                report.notes.append("no scikit-learn: give --peer an interpreter with it")
            for at, (name, cases) in enumerate(sets.items()):
                _quality(report, kb, name, cases, None if theirs is None else {k: v[at] for k, v in theirs.items()})
        for count in counts:
            _speed(report, count)
    return report


def _sets(kb: Stores) -> Iterator[tuple[str, list[Case]]]:
    causes = load_causes()
    for half in ("tuned", "held_out"):
        for lang in _LANGS:
            orders = getattr(work_orders(lang), half)
            yield f"work orders, {lang}, {half}", [(order.text, frozenset({order.category})) for order in orders]
    for part in ("tune", "held_out"):
        for lang in _LANGS:
            cases = []
            for question in questions(lang)[part]:
                known = [causes.get(kb.cards.get(card).cause or "") for card in question.cards]
                right = frozenset(cause.category for cause in known if cause is not None) - {"none"}
                if right:
                    cases.append((question.ask, right))
            yield f"questions, {lang}, {part}", cases


def _quality(report: Report, kb: Stores, name: str, cases: list[Case], theirs: dict[str, list[str]] | None) -> None:
    tally, by = Tally(), Counter[str]()
    given = []
    for text, right in cases:
        found = kb.classifier.classify(
            WorkOrder(origin="work_order", title=text[:300], created="2026-01-01T00:00:00Z")
        ).classification.category
        given.append(found.value)
        truth = found.value if found.value in right else sorted(right)[0]
        tally.add(truth, found.value, found.by)
        by[f"{found.by.partition(':')[0]}{'' if found.value in right else ' not'}"] += 1
    svm = _text_of(cases, theirs["svm"]) if theirs else ""
    report.rows.append(Row(f"{name} ({len(cases)})", _text_of(cases, given), svm))
    score = tally.score()
    confused = ", ".join(f"{c.truth} for {c.given} {c.count}" for c in score.confusion[:6])
    by_method = "; ".join(
        f"{key}: right {by[key]}, not {by[f'{key} not']}" for key in ("rule", "incidents", "words", "default")
    )
    classes = ", ".join(f"{c.category} {_share(c.recall)}" for c in score.classes if c.recall is not None)
    report.notes.append(f"{name}: by {by_method}. Not right: {confused or 'none'}. Found of each class: {classes}")
    if theirs:
        report.notes.append(f"{name}: scikit-learn's NearestCentroid: {_text_of(cases, theirs['centroid'])}")


def _text_of(cases: list[Case], given: list[str]) -> str:
    right = sum(one in truth for (_, truth), one in zip(cases, given, strict=True))
    wrong = sum(one not in truth and one != UNKNOWN for (_, truth), one in zip(cases, given, strict=True))
    return f"right {_interval(share(right, len(cases)))}, wrong {_interval(share(wrong, len(cases)))}"


def _interval(found: Share | None) -> str:
    return "-" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def _share(found: Share | None) -> str:
    return "-" if found is None else f"{found.hits}/{found.of}"


def _peer(python: str | None, tests: list[list[Case]]) -> dict[str, list[list[str]]] | None:
    train = [(order.text, order.category) for lang in _LANGS for order in work_orders(lang).tuned]
    given = json.dumps({"train": train, "tests": [[text for text, _ in cases] for cases in tests]})
    done = subprocess.run([python or sys.executable, "-c", _PEER], input=given, capture_output=True, text=True)
    if done.returncode != 0:
        return None
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


# --- the import ------------------------------------------------------------------------------------------------------


def backlog(count: int, file: Path) -> None:
    """Write `count` work orders to `file`: texts of the catalogue with different figures, hosts and remarks."""
    chance = random.Random(_SEED)
    orders = [o for lang in _LANGS for half in ("tuned", "held_out") for o in getattr(work_orders(lang), half)]
    remarks = ("please check", "team alpha", "since the upgrade", "thanks", "谢谢", "每天都有", "second time this week")
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "title", "description", "created", "priority", "host"])
        for n in range(count):
            order = chance.choice(orders)
            figures = (
                f"seen at {chance.randrange(24)}:{chance.randrange(10, 60)}, pid {chance.randrange(99999)}, job-{n}"
            )
            remark = ", ".join(chance.sample(remarks, chance.randrange(4)))
            host, day = f"node-{chance.randrange(300)}", f"2026-02-{chance.randrange(1, 28):02}"
            writer.writerow(
                [n, order.text, f"{order.text}; {figures}; {remark}", day, chance.choice(["P1", "P3", "高", ""]), host]
            )


def _speed(report: Report, count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "orders.csv"
        backlog(count, file)
        command = [
            sys.executable,
            "-c",
            "import sys; from whystall.agent_server.interfaces.cli.main import main; sys.exit(main())",
        ]
        settings = Path(directory) / "whystall.toml"
        settings.touch(0o600)
        environment = {"WHYSTALL_HOME": directory, "WHYSTALL_CONFIG": str(settings), "PATH": "/usr/bin:/bin"}
        walls, imported = [], {}
        for _ in range(2):  # the second time nothing is new
            begun = time.monotonic()
            done = subprocess.run(
                [*command, "tickets", "import", str(file), "--json"], env=environment, capture_output=True, text=True
            )
            walls.append(time.monotonic() - begun)
            if done.returncode != 0:
                raise SystemExit(done.stderr)
            imported = imported or json.loads(done.stdout)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        size = (Path(directory) / "knowledge.db").stat().st_size / 2**20
    small = count <= 10_000
    name = f"import of {count:,}"
    goal = f"< {_GOAL_S:.0f} s" if small else ""
    report.rows += [
        Row(
            f"{name}: wall",
            f"{walls[0]:.1f} s ({count / walls[0]:.0f} a second)",
            goal=goal,
            met=walls[0] < _GOAL_S if small else None,
        ),
        Row(f"{name}: once more, nothing new", f"{walls[1]:.1f} s"),
        Row(f"{name}: peak memory of any child so far", f"{peak:.0f} MB"),
    ]
    kinds = f"{imported['new']} tickets, {imported['again']} counted again, {imported['linked']} links"
    report.notes.append(f"{name}: {kinds}; knowledge base of {size:.0f} MiB")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", default="1000,10000", help="sizes of the backlogs")
    parser.add_argument("--peer", help="an interpreter with scikit-learn")
    parser.add_argument("--out", type=Path, help="report in which this section is replaced")
    options = parser.parse_args(arguments)
    return publish(run([int(count) for count in options.orders.split(",")], options.peer), options.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
