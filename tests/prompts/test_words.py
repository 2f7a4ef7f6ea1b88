"""Every code has a text in both languages, with the same blanks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from making import finding

from whystall.knowledge_base.classify import rules
from whystall.knowledge_base.models import Cause, CauseState, Lang, Verdict
from whystall.knowledge_base.ticket_models import ClosedAs, LinkKind, Origin, State, What
from whystall.prompts.files import LANGS
from whystall.prompts.render import voice, words
from whystall.tools.contract.findings import Finding, Severity
from whystall.tools.contract.kinds import KINDS
from whystall.tools.contract.result import BLIND_SPOTS, BlindSpot, Status
from whystall.tools.host.common import cache_streams as page_cache_files
from whystall.tools.host.common import path_codes
from whystall.tools.host.host_bound import activity as host_bound_activity
from whystall.tools.host.host_bound import remedies as host_bound_remedies
from whystall.tools.host.hybrid_io_advise import advice as hybrid_io_advice
from whystall.tools.host.hybrid_io_advise import tool as hybrid_io_advise
from whystall.tools.host.hybrid_io_advise import trials as io_trials
from whystall.tools.host.page_cache import data as page_cache_data
from whystall.tools.ranks.slow_node_check import outcome
from whystall.tools.ranks.slow_node_check import tables as slow_node_data

ROOT = Path(__file__).parents[2]
CJK = re.compile(r"[\u4e00-\u9fff]")


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}/")
        else:
            yield f"{path}{key}", str(value)


def test_both_languages_say_the_same_things() -> None:
    en, zh = dict(leaves(words("en"))), dict(leaves(words("zh")))
    assert en.keys() == zh.keys()
    for key, text in en.items():
        assert sorted(re.findall(r"\{\w*\}", text)) == sorted(re.findall(r"\{\w*\}", zh[key])), key
        assert not CJK.search(text), key


def test_chinese_is_chinese() -> None:
    for key, text in leaves(words("zh")):
        bare = re.sub(r"\{\w*\}|CPU|I/O|Python|Pod", "", text)
        assert CJK.search(text) or not re.search(r"[a-zA-Z]", bare), key


@pytest.mark.parametrize("lang", LANGS)
def test_every_code_has_words(lang: str) -> None:
    said = words(lang)
    assert said["kinds"].keys() == KINDS.keys()
    assert said["blind"].keys() == BLIND_SPOTS
    assert said["metrics"].keys() == {name for spec in KINDS.values() for name in spec.metrics}
    attributes = {name for spec in KINDS.values() for name in spec.attributes}
    assert said["attributes"].keys() | said["flags"].keys() == attributes
    assert said["verdicts"].keys() == said["verdict_lines"].keys() == {v.value for v in Verdict}
    assert said["severities"].keys() == {s.value for s in Severity}
    assert said["status"].keys() == {s.value for s in Status}
    told = {*get_args(Cause.model_fields["category"].annotation), *rules.categories(), rules.UNKNOWN}
    assert said["categories"].keys() == told
    assert said["states"].keys() == set(get_args(State))
    tickets = said["tickets"]
    codes = {"closed_as": ClosedAs, "origins": Origin, "link": LinkKind, "events": What}
    assert {name: tickets[name].keys() for name in codes} == {name: set(get_args(c)) for name, c in codes.items()}
    assert {spec.subject for spec in KINDS.values()} <= said["subjects"].keys()
    assert len(CauseState) == 4


@pytest.mark.parametrize("lang", LANGS)
def test_every_reason_and_remedy_of_a_tool_has_words(lang: str) -> None:
    said = words(lang)
    assert said["reasons"].keys() == {*host_bound_activity.CODES, "sync"}
    assert said["remedies"].keys() == {*host_bound_remedies.CODES, *hybrid_io_advise.CODES}
    assert set(get_args(hybrid_io_advice.Reason)) <= said["cache_reasons"].keys()
    assert said["io_ways"].keys() == set(get_args(hybrid_io_advice.Method))
    assert said["io_operations"].keys() == set(get_args(io_trials.Operation))


@pytest.mark.parametrize("lang", LANGS)
def test_every_code_of_the_page_cache_has_words(lang: str) -> None:
    said = words(lang)
    assert said["page_cache"]["verdicts"].keys() == set(get_args(page_cache_data.Verdict))
    source = (ROOT / "tools/host/common/cache_streams.py").read_text("utf-8")
    told = {"".join(found) for found in re.findall(r'Stream\(use, "(\w+)"|return "(\w+)"|"(too_large\w*)"', source)}
    assert "others_refault" in told
    assert told <= said["cache_reasons"].keys()
    assert said["stall_kinds"].keys() == set(page_cache_files.RECLAIMS)


@pytest.mark.parametrize("lang", LANGS)
def test_every_code_of_the_slow_node_check_has_words(lang: str) -> None:
    said = words(lang)["ranks"]
    assert said["verdicts"].keys() == set(get_args(slow_node_data.Verdict))
    assert said["classes"].keys() == set(get_args(slow_node_data.SlowClass))
    shapes = set(get_args(slow_node_data.SlowSteps.model_fields["shape"].annotation))
    assert said["shapes"].keys() == said["slow_steps"].keys() == shapes
    assert said["confidence"].keys() == set(get_args(slow_node_data.AccusedRow.model_fields["confidence"].annotation))
    assert said["reasons"].keys() >= set(outcome.REASONS)
    told = re.search(r"`what`: ([\w, \n]+)\.", slow_node_data.EvidenceRow.__doc__ or "")
    assert told
    assert said["evidence"].keys() == set(re.findall(r"\w+", told[1]))


def codes(pattern: str, *files: str) -> set[str]:
    """Codes that the sources write, found by `pattern`; it must find some."""
    found = {code for file in files for code in re.findall(pattern, (ROOT / file).read_text("utf-8"))}
    assert found
    return found


@pytest.mark.parametrize("lang", LANGS)
def test_every_code_that_the_investigation_writes_has_words(lang: str) -> None:
    directory = "agent_server/diagnosis/"
    missing = codes(r'missing(?:\.append\(| = .*\[)"(\w+)"', directory + "verdict.py", "knowledge_base/verify.py")
    assert {"second_mechanism", "rivals_open", "low_explained_share", "no_victim", "no_evidence"} <= missing
    said = words(lang)
    assert missing <= said["missing"].keys() | said["blind"].keys()
    assert codes(r'_victim\([^)]*"(\w+)"\)', directory + "victim.py") <= said["chosen_by"].keys()
    looks = codes(
        r'(?:case\.observe|_observe_longer)\([^"]*"(\w+)"', directory + "rules.py", directory + "model_calls.py"
    )
    assert {"first_look", "separates_causes", "model_asked"} <= looks <= said["why"].keys()


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("suffix", ["md", "txt"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_makes_a_sentence(kind: str, lang: str, suffix: str) -> None:
    spec, speaks = KINDS[kind], voice(suffix, lang)
    flags = words(lang)["flags"].keys()
    attributes = {name: "yes" if name in flags else f"a_{name}" for name in spec.attributes}
    full = finding(kind, words=attributes, **dict.fromkeys(spec.metrics, 7.25))
    sentence = speaks.finding(full)
    assert "{" not in sentence
    assert "\n" not in sentence
    # of a stack only its line of code is shown; of a row of the path either the wait or the mode of running, and the
    # same of the end of its chain
    apart = {"stack", "wait", "mode", "root_mode"} if kind.startswith("path.") else set()
    for name in spec.attributes - flags - apart:
        assert f"a_{name}" in sentence
    assert ("7.25" if set(spec.metrics.values()) - {"count"} else "7") in sentence
    bare = finding(kind, polarity="normal", subject={"pid": None, "tid": None, "comm": None, "path": None})
    assert speaks.finding(bare) != sentence
    assert "None" not in speaks.finding(bare)
    unlike = {speaks.lead(finding(other)) for other in KINDS}
    assert len(unlike) == len(KINDS)


@pytest.mark.parametrize("lang", LANGS)
def test_every_code_of_the_critical_path_has_words(lang: str) -> None:
    said = words(lang)
    assert said["path_waits"].keys() - {"absent", "not_followed"} == path_codes.WAITS.keys()
    assert said["path"]["modes"].keys() - {"code", "call", "other"} == path_codes.MODES.keys()
    assert said["path"]["roles"].keys() == path_codes.ROLES.keys()
    details = re.search(r"detail: own(.*)", path_codes.WAITS["cpu"])
    assert details
    assert said["path"]["cpu_details"].keys() == {"own", *re.findall(r", (\w+)", re.sub(r"\(.*?\)", "", details[1]))}


def test_busy_cpus_are_those_of_the_host_or_those_that_the_job_may_use() -> None:
    host = finding("cpu.saturated", busy_pct=99)
    own = finding("cpu.saturated", words={"cpus": "1"}, busy_pct=99, allowed_cpus=1)
    assert voice("txt", "en").lead(host) == "all CPUs of the host are busy"
    expected = "the CPUs that the job may use are busy: 99 % busy, may use 1 CPU, CPU 1"
    assert voice("txt", "en").finding(own) == expected


WAITS = {
    "wait": "queue",
    "code": "get (queue.py:180)",
    "function": "next_batch (train.py:41)",
    "by": "worker (830)",
    "root_wait": "running",
    "root_by": "worker (830)",
    "root_code": "decode (data.py:17)",
}
CHAIN = {
    "wait": "queue",
    "by": "w (830)",
    "root_wait": "file",
    "root_by": "w (831)",
    "chain": "w (830) pipe at epoll_wait < w (831 of 829) file read fuse at load (d.py:3) of /data/x",
}
PAUSE = {"code": "save (train.py:33)", "function": "save (train.py)", "main": "system getrandom"}


@pytest.mark.parametrize(
    ("lang", "found", "sentence"),
    [
        (
            "en",
            finding("path.wait", words=WAITS, window_pct=41.2),
            "train (4243) waits 41.2 % of the time for another thread to hand it work or a result, "
            "at get (queue.py:180), called by next_batch (train.py:41); "
            "meanwhile worker (830) runs decode (data.py:17)",
        ),
        (
            "zh",
            finding("path.wait", words=WAITS, window_pct=41.2),
            "train (4243) 有 41.2 % 的时间在等另一线程交来工作或结果，位于 get (queue.py:180)，"
            "由 next_batch (train.py:41) 调用；此时 worker (830) 在运行 decode (data.py:17)",
        ),
        (
            "zh",
            finding("path.wait", words=CHAIN, window_pct=9),
            "train (4243) 有 9 % 的时间在等另一线程交来工作或结果，由 w (830) 结束等待；此时 w (831) 在等文件操作；"
            "等待链 w (830) 管道，位于 epoll_wait ← w (831，进程 829) 文件 read fuse，位于 load (d.py:3)（/data/x）",
        ),
        (
            "en",
            finding("path.pause", words=PAUSE, period_s=2.8, p50_ms=130, main_pct=85, window_pct=5),
            "train (4243) pauses every 2.8 s for 130 ms, at save (train.py:33), 5 % of the time; "
            "85 % of it: runs in the system call getrandom",
        ),
        (
            "en",
            finding("path.running", words={"code": "dot (a.py:3)", "function": "f (b.py:4)"}, window_pct=9),
            "train (4243) runs dot (a.py:3) 9 % of the time, called by f (b.py:4)",
        ),
        (
            "en",
            finding("path.wait", words={"wait": "cpu", "detail": "others", "by": "hog (9)"}, window_pct=9),
            "train (4243) is ready to run 9 % of the time and waits for a CPU (other processes had it), "
            "while hog (9) ran there",
        ),
    ],
)
def test_a_row_of_the_critical_path_reads_as_a_sentence(lang: str, found: Finding, sentence: str) -> None:
    assert voice("txt", lang).finding(found) == sentence


@pytest.mark.parametrize("lang", LANGS)
def test_every_blind_spot_makes_a_sentence(lang: str) -> None:
    for code in BLIND_SPOTS:
        said = voice("txt", lang).blind(BlindSpot(code=code, detail="17 of them"))
        assert said.rstrip(".。").endswith('("17 of them")')
        assert said.startswith(words(lang)["blind"][code].rstrip(".。"))


def test_an_unknown_code_is_shown_as_it_is() -> None:
    speaks = voice("txt", "en")
    assert speaks.missing("grace") == "grace"
    assert speaks.blind(BlindSpot(code="fog")) == "fog"
    assert speaks.code("why", "by_chance") == "by_chance"
    assert speaks.shared("aura:blue") == "aura:blue"


def test_there_are_two_languages() -> None:
    assert set(LANGS) == set(get_args(Lang))
    with pytest.raises(KeyError):
        words("fr")


@pytest.mark.parametrize("lang", LANGS)
def test_a_shrinking_function_has_a_text_with_its_direction(lang: Lang) -> None:
    """What shrank is a normal finding too, and a change."""
    assert "{direction}" in words(lang)["kinds"]["profile.change"]["normal"]


@pytest.mark.parametrize("file", sorted(ROOT.glob("prompts/**/*.yaml")), ids=lambda file: file.name)
def test_no_key_is_given_twice(file: Path) -> None:
    """PyYAML takes the last one silently."""

    def repeated(node: yaml.Node) -> list[str]:
        if isinstance(node, yaml.SequenceNode):
            return [text for one in node.value for text in repeated(one)]
        if not isinstance(node, yaml.MappingNode):
            return []
        names = Counter(key.value for key, _ in node.value)
        own = [f"{name} (line {node.start_mark.line + 1})" for name, count in names.items() if count > 1]
        return own + [text for _, value in node.value for text in repeated(value)]

    tree = yaml.compose(file.read_text())
    assert tree is None or repeated(tree) == []


@pytest.mark.parametrize("lang", LANGS)
def test_groups_that_are_parsed_alone_are_those_of_the_whole_file(lang: str) -> None:
    assert dict(words(lang)) == yaml.safe_load((ROOT / "prompts/words" / f"{lang}.yaml").read_text("utf-8"))
