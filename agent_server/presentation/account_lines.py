"""The account of the victim's time as text: its rows, pauses, and the causes of other parts of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from whystall.agent_server.presentation.path_change_lines import path_text
from whystall.knowledge_base.account_row import AccountRow
from whystall.knowledge_base.causes import ranked_remedies
from whystall.knowledge_base.models import Assessment, Cause, CauseState, Diagnosis, Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.path_sentences import REST
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, fit, voice, words
from whystall.tools.contract.findings import Finding, Polarity

if TYPE_CHECKING:
    from whystall.tools.history.path_data import PathDifference
    from whystall.tools.host.critical_path import tool as critical_path

_PAUSES = 5
_PATH = ("path.running", "path.wait", "path.pause")
_WIDTH = 6  # of a share
_ROWS, _CHANGES = 12, 6
# What takes this share of the time, and recurs after less than so many seconds, is a part of each step.
_STEP_PCT, _STEP_S = 10.0, 1.0
_NOTHING_PCT = 0.05  # rounding errors
_LONG = 200
_NUMBERS = 3


@dataclass(frozen=True)
class Account:
    """`rows`: largest first; `left`: number of rows that did not fit; `pauses`: of the same thread."""

    heading: Safe = field(default_factory=Safe)
    rows: list[Safe] = field(default_factory=list)
    left: int = 0
    pauses: list[Safe] = field(default_factory=list)


def account_text(d: Diagnosis, suffix: str, lang: Lang, budget: int | None = None) -> Account:
    """Return the account of `d`, with rows of at most `budget` characters (None: all); empty if it has none."""
    victim = d.victim
    if not d.account or victim is None:
        return Account()
    form, say = FORMATS[suffix], voice(suffix, lang)
    by_id = {f.id: f for f in d.findings} if suffix == "txt" else {}
    rows = [_cited(_row(row, suffix, lang), by_id.get(row.finding), lang) for row in d.account]
    kept, left = fit(rows, budget) if budget is not None else (rows, 0)
    pauses = [f for f in d.findings if f.kind == "path.pause" and f.subject.tid == victim.tid and not _is_step(f)]
    pauses.sort(key=lambda f: -f.window_pct)
    return Account(
        heading=Safe(words(lang)["path"]["account"].format(f"{form.name(victim.comm)} ({victim.tid})")),
        rows=kept,
        left=left,
        pauses=[_share(f.window_pct, suffix, lang, say.path.pause(f)) for f in pauses[:_PAUSES]],
    )


def _is_step(pause: Finding) -> bool:
    """Return whether a pause comes so often, and takes so much of the time, that it is a part of each step: a row has
    the same."""
    period_s = pause.metrics.get("period_s", 0.0)
    return pause.window_pct >= _STEP_PCT and 0.0 < period_s < _STEP_S


def _cited(row: Safe, finding: Finding | None, lang: Lang) -> Safe:
    """Return a row with the numbers and the id of its finding, which is not repeated elsewhere."""
    if finding is None:
        return row
    numbers = voice("txt", lang).path.numbers(finding)
    return Safe(f"{words(lang)['marks']['comma'].join([row, *numbers])} [{finding.id}]")


def path_rows(data: critical_path.Data, findings: Sequence[Finding]) -> list[Finding | None]:
    """Return the finding of each shown row of the tool `critical_path`, None for a row without one."""
    tid = data.thread.tid if data.thread is not None else None
    own = [f for f in findings if f.kind in _PATH[:2] and f.subject.tid == tid]
    found: list[Finding | None] = []
    for row in _shown_rows(data):
        same = (f for f in own if f.window_pct == min(row.window_pct, 100.0) and f not in found)
        found.append(next((f for f in same if f.attributes.get("wait", REST) in (row.what, REST)), None))
    return found


def _shown_rows(data: critical_path.Data) -> list[critical_path.PathRow]:
    return [row for row in data.rows if row.what != REST][:_ROWS]


def _row(row: AccountRow, suffix: str, lang: Lang) -> Safe:
    texts = {name: value for name, value in row.model_dump().items() if isinstance(value, str)}
    known = {**texts, "open": "yes" if row.open else ""}
    looks = {"between_ms": row.between_ms, "max_ms": row.max_ms or 0.0}
    root = (row.root_pct, row.root_by_pct)
    text = voice(suffix, lang).path.row(row.what, known, root, row.growth, looks)
    return _share(row.window_pct, suffix, lang, text)


def _share(pct: float, suffix: str, lang: Lang, text: Safe) -> Safe:
    """Return `text` behind its share: in a column on terminals, else behind a colon."""
    share = quantity(pct, "pct")
    return Safe(f"{share:>{_WIDTH}}  {text}" if suffix == "txt" else f"{share}{words(lang)['marks']['colon']}{text}")


def critical_path_lines(data: critical_path.Data, lang: Lang, findings: Sequence[Finding] = ()) -> list[Safe]:
    """Return the first lines of the tool `critical_path`: what changed since an earlier recording, the thread, why it
    was chosen, and rows that sum to 100 %, with the ids of their `findings`."""
    thread = data.thread
    if thread is None:
        return []
    form, say, texts = FORMATS["txt"], voice("txt", lang), words(lang)
    marks = texts["marks"]
    lines = compared_lines(data.compared, lang, findings)
    lines += [Safe(texts["path"]["account"].format(f"{form.name(thread.comm)} ({thread.tid})"))]
    if data.chosen_by in texts["chosen_by"]:
        other = data.runner_up
        named = texts["path"]["runner_up"].format(f"{form.name(other.comm)} ({other.tid})") if other else ""
        lines.append(Safe(f"  {texts['chosen_by'][data.chosen_by]}{marks['semicolon'] if named else ''}{named}"))
    rows = _shown_rows(data)
    for row, finding in zip(rows, path_rows(data, findings), strict=True):
        known = {
            **{"mode": row.mode, "detail": row.detail, "code": row.inner, "function": row.line, "object": row.object},
            **{"by": row.by, "chain": row.chain, "wait": row.what, "open": "yes" if row.open_s else ""},
            **{"root_wait": row.root_what, "root_code": row.root_line, "root_by": row.root, "cpus": row.cpus},
            **{"root_detail": row.root_detail, "root_mode": row.root_mode},
            **{"between": row.between, "between_object": row.between_object, "standstill": row.standstill},
        }
        looks = {"between_ms": row.between_ms or 0.0, "max_ms": row.max_ms or 0.0}
        root = (row.root_pct or 0.0, row.root_by_pct or 0.0)
        text = say.path.row(row.what, known, root, row.growth, looks)
        lines.append(_cited(_share(row.window_pct, "txt", lang, text), finding, lang))
    left = 100.0 - sum(row.window_pct for row in rows)
    return [*lines, *([_share(left, "txt", lang, say.path.row(REST, {}))] if left >= _NOTHING_PCT else [])]


def compared_lines(found: PathDifference | None, lang: Lang, findings: Sequence[Finding] = ()) -> list[Safe]:
    """Return what changed in each step since an earlier recording, with the ids of its `findings`."""
    text = path_text(found, lang, _CHANGES, findings)
    if text is None:
        return []
    left = [Safe("  " + words(lang)["labels"]["left_out"].format(text.left))] if text.left else []
    return [*text.head, *(Safe(f"- {row}") for row in text.rows), *left]


def other_causes(d: Diagnosis, causes: Mapping[str, Cause], suffix: str, lang: Lang) -> list[Safe]:
    """Return the supported causes besides that of `d`, each with its share and place; one that explains other time than
    that of `d` also with its best remedy.
    """
    by_id = {f.id: f for f in d.findings}
    supported = [a for a in d.assessments if a.state is CauseState.SUPPORTED]
    leader = next((a for a in supported if a.cause == d.cause), None)
    return [_cause(a, leader, by_id, causes, suffix, lang) for a in supported if a is not leader]


def _cause(
    a: Assessment,
    leader: Assessment | None,
    by_id: Mapping[str, Finding],
    causes: Mapping[str, Cause],
    suffix: str,
    lang: Lang,
) -> Safe:
    form, labels, marks = FORMATS[suffix], words(lang)["labels"], words(lang)["marks"]
    cause = causes.get(a.cause)
    title = Safe(cause.title.get(lang)) if cause else form.name(a.cause)
    facts = [Safe(labels["share"].format(quantity(a.window_pct, "pct")))] if a.window_pct else []
    evidence = [by_id[i] for i in a.for_ if i in by_id]
    if evidence:  # of rows of the path the line of code is known
        facts += _places(next((f for f in evidence if f.kind in _PATH), evidence[0]), suffix, lang)
    text = Safe(f"{title}{marks['colon']}{marks['comma'].join(facts)}" if facts else title)
    if cause is None:
        return text
    needed = _own_condition(cause, a, leader, by_id)
    if needed is not None:
        text = Safe(f"{text}{marks['semicolon']}{voice(suffix, lang).finding(needed, _NUMBERS)}")
    if needed is None and not _of_other_time(a, leader, by_id):
        return text
    return Safe(f"{text}{marks['semicolon']}{fill(form.running, labels['try_first'], _remedy(cause, evidence, lang))}")


def _own_condition(
    cause: Cause, a: Assessment, leader: Assessment | None, by_id: Mapping[str, Finding]
) -> Finding | None:
    """Return what the cause requires beyond a share of the time, and the leading cause does not rest on: a limit that
    is reached, a slow disk. Such a cause may be removed by itself, though it explains the same time."""
    required = {p.kind for p in cause.required}
    known = set(leader.for_) if leader is not None else set()
    found = (by_id[i] for i in a.for_ if i in by_id and i not in known)
    return next((f for f in found if f.kind in required and f.polarity is Polarity.ABNORMAL), None)


def _remedy(cause: Cause, evidence: Sequence[Finding], lang: Lang) -> Safe:
    return Safe(ranked_remedies(cause, evidence)[0].text.get(lang).rstrip(".。"))


def _places(finding: Finding, suffix: str, lang: Lang) -> list[Safe]:
    """Return the line of code and the file, device or cgroup of a finding."""
    form, labels = FORMATS[suffix], words(lang)["labels"]
    subject = finding.subject
    code, place = _code(finding), subject.path or subject.device or subject.cgroup
    found = [fill(form.running, labels["at_code"], voice(suffix, lang).place(short(code, _LONG)))] if code else []
    return found + ([form.name(short(place, _LONG))] if place else [])


def _code(finding: Finding) -> str:
    """Return the program's line, else the innermost one."""
    return finding.attributes.get("function") or finding.attributes.get("code", "")


def _of_other_time(a: Assessment, leader: Assessment | None, by_id: Mapping[str, Finding]) -> bool:
    """Return whether two causes explain different parts of the time: rows of the path differ, or lines of code do."""
    if leader is None or set(a.for_) & set(leader.for_):
        return False
    one, other = ([by_id[i] for i in ids if i in by_id] for ids in (a.for_, leader.for_))
    if any(f.kind in _PATH for f in one) and any(f.kind in _PATH for f in other):
        return True
    codes = [next((_code(f) for f in found if _code(f)), "") for found in (one, other)]
    return all(codes) and codes[0] != codes[1]
