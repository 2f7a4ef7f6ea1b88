"""Draw a diagnosis as one picture, in the same words as its text."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.agent_server.integrations.chat_vendors.markup import spans
from whystall.agent_server.presentation.texts import brief
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Diagnosis, Lang, Verdict, Victim
from whystall.prompts.escape import markdown_code, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import voice, words
from whystall.tools.contract.findings import Finding
from whystall.tools.views.verdict_drawing import Card, Fact, Line, Proof, Run, Share, draw

_PROOFS = 3
_DETAILS = 3
_NAME = 64  # characters of a name; longer ones lose their middle
# Share of time by prefix of the finding's kind; others are "blocked".
_STATES = (
    ("sched.", "runnable"),
    ("offcpu.preempted", "runnable"),
    ("cgroup.cpu_throttled", "runnable"),
    ("process.system_time", "system"),
    ("syscall.cpu_time", "system"),
    ("irq.", "system"),
    ("profile.", "user"),
)
# Metrics that split the time of an operation.
_WITHIN = (("system", ("oncpu_pct",)), ("runnable", ("runnable_pct",)), ("blocked", ("blocked_pct", "sleep_pct")))
_SHARES = ("user", "system", "runnable", "blocked", "idle")


def svg(diagnosis: Diagnosis, lang: Lang) -> str:
    """Return the picture of `diagnosis` as SVG."""
    return draw(card(diagnosis, lang))


def card(d: Diagnosis, lang: Lang) -> Card:
    """Return the picture's content: verdict, the victim's time, evidence, place, duration and first remedy."""
    known, view = words(lang), brief(d, load_causes(), lang)
    picture, cause = known["picture"], view["cause"]
    verdict = d.verdict.value
    title = cause.title.get(lang) if cause else known["verdict_lines"][verdict]
    window = view["window_s"]
    host = next((window.host for window in d.coverage if window.host), "")
    about = _formatted(
        picture["about" if window and host else "about_read"],
        target=markdown_code(short(d.target, _NAME)),
        host=markdown_code(short(host, _NAME)),
        window=quantity(window, "s"),
    )
    by_id = {finding.id: finding for finding in d.findings}
    chain = [by_id[id] for id in d.chain if id in by_id]
    explained = d.verdict in (Verdict.CONFIRMED, Verdict.LIKELY) and d.explained_pct > 0
    heading = _formatted(picture["proofs" if explained else "proofs_open"], pct=quantity(d.explained_pct, "pct"))
    who = f"{markdown_code(d.victim.comm)} ({d.victim.tid})" if d.victim else ""
    return Card(
        lang=lang,
        look="no_load" if d.verdict is Verdict.IDLE else verdict,  # "idle" is the colour of a share
        badge=str(known["verdicts"][verdict]),
        title=str(title),
        about=_line(about),
        shares_heading=_line(_formatted(picture["time"], who=who), bold=True) if d.victim else [],
        shares=_shares(d.victim, picture["shares"]) if d.victim else [],
        lost=_formatted(picture["lost"], pct=quantity(d.victim.lost_pct, "pct")) if d.victim else "",
        proofs_heading=_line(heading, bold=True),
        proofs=_proofs(chain, lang),
        facts=_facts(d, lang, view),
        foot=f"whystall · {d.created} · {d.id}",
    )


def _formatted(text: str, **values: str) -> str:
    return str(text).format(**values)


def _shares(victim: Victim, names: dict[str, str]) -> list[Share]:
    """Return the victim's shares of time; empty for a rank known only from traces."""
    parts = [(name, float(getattr(victim, f"{name}_pct"))) for name in _SHARES]
    if sum(pct for _, pct in parts) <= 0:
        return []
    return [Share(pct, name, str(names[name]), quantity(pct, "pct")) for name, pct in parts]


def _proofs(chain: Sequence[Finding], lang: Lang) -> list[Proof]:
    say = voice("md", lang)
    made = []
    for finding in chain[:_PROOFS]:
        pct = finding.window_pct
        line = _line(say.finding(_brief(finding), _DETAILS))
        made.append(Proof(line, _parts(finding), quantity(pct, "pct")) if pct > 0 else Proof(line))
    return made


def _parts(finding: Finding) -> list[tuple[float, str]]:
    """Split the finding's time by state: a file operation may also wait for the CPU."""
    whole = finding.window_pct
    split = [(sum(finding.metrics.get(name, 0.0) for name in names), state) for state, names in _WITHIN]
    known = sum(pct for pct, _ in split)
    if known > 0:
        return [(whole * pct / known, state) for pct, state in split if pct > 0]
    return [(whole, next((state for start, state in _STATES if finding.kind.startswith(start)), "blocked"))]


def _brief(finding: Finding) -> Finding:
    """Return `finding` with a shortened path and without its share, which is shown beside it."""
    metrics = {name: value for name, value in finding.metrics.items() if name != finding.spec.share}
    path = finding.subject.path
    subject = finding.subject if path is None else finding.subject.model_copy(update={"path": short(path, _NAME)})
    return finding.model_copy(update={"metrics": metrics, "subject": subject})


def _facts(d: Diagnosis, lang: Lang, view: dict[str, object]) -> list[Fact]:
    known = words(lang)
    labels, picture = known["labels"], known["picture"]
    facts: list[tuple[str, object, int]] = []
    if d.victim is not None and d.victim.type != "thread":
        facts.append((labels["who"], view["victim"], 3))
    if d.culprit is not None:
        brief_place = d.culprit.model_copy(update={"kernel_path": None})
        short_view = brief(d.model_copy(update={"culprit": brief_place}), load_causes(), lang)
        facts += [(labels["where"], short_view["where"], 3), (labels["how_long"], view["how_long"], 2)]
    fixes = view["fixes"]
    if isinstance(fixes, list) and fixes:
        facts.append((picture["try"], fixes[0], 4))
    elif view["busy"]:
        facts.append((picture["further"], view["busy"], 3))
    if d.verdict in (Verdict.LIKELY, Verdict.INCONCLUSIVE, Verdict.IDLE) and d.missing:
        facts.append((picture["lacks"], voice("md", lang).missing(d.missing[0]), 2))
    return [Fact(str(label), _line(str(text)), lines) for label, text, lines in facts if text]


def _line(text: str, bold: bool = False) -> Line:
    """Parse one line of Markdown into runs of text and names."""
    return [
        Run(short(span.text, 2 * _NAME) if span.code else span.text, name=span.code, bold=bold or span.bold)
        for span in spans(text)
    ]
