"""Check one claim against the findings it cites: names, numbers, components, states and blame. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.agent_server.diagnosis.grounding import names, numbers, path_states, state_words
from whystall.agent_server.diagnosis.grounding.clauses import CLAUSES, DENIED, FLATLY
from whystall.agent_server.diagnosis.grounding.numbers import OF_LIMIT, WINDOW, Fact
from whystall.agent_server.diagnosis.grounding.numerals import blanked
from whystall.agent_server.diagnosis.grounding.time_use import OF_CALLS, OF_VICTIM, RAN, WAITED
from whystall.knowledge_base import components
from whystall.knowledge_base.causes import about
from whystall.knowledge_base.models import Assessment, CauseState, Verdict, Victim
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.text import clean

Fault = tuple[str, str]
"""A code (``struck`` in ``prompts/words``) and the words in question."""

_WIDE = "，；：！？（）"
_WIDE_ONES = re.compile(f"([{_WIDE}])")
# Shares of the time of calls, not of the window.
_SPLIT = ("oncpu_pct", "blocked_pct", "sleep_pct", "runnable_pct")
_WAITED = (
    *("offcpu.blocked", "offcpu.lock_wait", "offcpu.preempted", "sched.runqueue_delay", "process.io_wait"),
    *("cgroup.cpu_throttled", "file.slow_sync", "file.slow_read", "file.slow_write", "file.slow_metadata"),
    "path.wait",
)
# Kinds that show where time went: they may support any claim.
_NEUTRAL = ("thread.time", "profile.frame", "profile.period", "run.step_time", "run.difference")
_REFERENCE = re.compile(
    r"(?<![A-Za-z0-9_.])[\[(]?F(\d+)(?:\s?(?:-|–|to|,|，|、|and|和|/)\s?F(\d+))*[\])]?(?![A-Za-z0-9_])",
)
_CAUSE = re.compile(r"(?<![\w./])[a-z]+(?:_[a-z]+)+(?![\w/])")
_IDS = re.compile(r"(?<![A-Za-z0-9_.])F\d+(?![A-Za-z0-9_])")
_WAITS = re.compile(
    r"\b(?:wait\w*|block\w*|calls?|in flight|sle+p\w*|runnable|stall\w*|i/o)\b|等待|阻塞|调用|停顿|返回|[读写]", re.I
)
_SERVES = re.compile(
    r"(?<![A-Za-z])fuse(?:[ -]file ?system)?(?:['’]s)?[ -](?:userspace |user-space )?(?:daemon|server)(?:['’]s)?"
    r"(?![\w-])|"
    r"(?<![A-Za-z])fuse ?(?:文件系统)?的?(?:用户态)?(?:守护进程|服务端|服务进程)",
    re.I,
)
_WELL = re.compile(
    r"\b(?:healthy|normal|fine|innocent|not to blame|ruled out|not (?:the |a )?(?:cause|problem|bottleneck|"
    r"culprit)|well within)\b|"
    r"(?<!不)正常|健康|被排除|已排除|不是(?:原因|瓶颈|问题)|没有(?:问题|异常)|无异常",
    re.I,
)
_ALL_WELL = re.compile(
    r"\b(?:is|are|looks?|seems?) (?:\w+ ){0,2}(?:healthy|fine|ok|okay|normal)\b|\bno (?:stall|problem|issue|fault|"
    r"delay)s?\b|\bnothing (?:is )?(?:wrong|holds?|blocks?)|"
    r"一切正常|(?:作业|任务|训练)\S{0,4}(?:正常|健康)|没有(?:问题|停顿|故障|卡顿)",
    re.I,
)
_ACCUSES = re.compile(
    r"\b(?:slow|slower|slowly|slowest|overloaded|stuck|hangs?|hung|hanging|starve[sd]?|starving|bottlenecks?|"
    r"culprit|causes?|caused|causing|blames?|blamed|delays?|delayed|(?:holds?|held) (?:\w+ ){0,3}(?:up|back)|stalls?|"
    r"stalled|stalling|hogs?|hogging|"
    r"steals?|stealing|stolen|responsible|root|origin|because of|due to|exhausted|exhausts|scarce|wedged|drags?|"
    r"limits (?:the|this|it)\b|what limits|limiting|restricts?|constrains?|too (?:long|much|many|high|large|slow))\b|"
    r"慢|卡住|卡死|挂起|瓶颈|罪魁|导致|造成|引起|拖慢|拖住|拖累|停顿|抢走|耗尽|限制了|制约|根源|元凶|异常(?!率)|过(?:长|高|多|大)",
    re.I,
)
# Blame in the form of a denial.
_LACKS = re.compile(
    r"\b(?:not enough|insufficient|too (?:few|little)|shortages?|short of|lacks?|lacking)\b|"
    r"(?:不足|不够)(?! ?[\d一二三四五六七八九十百])|紧张|短缺",
    re.I,
)
_ADVICE = re.compile(
    r"\b(?:should|shall|please|recommend(?:s|ed|ation)?|advise[sd]?|advice|suggest(?:s|ed)? (?:to|that you)|you|"
    r"your|yours|we|us|our|"
    r"ignore[sd]?|ignoring|disregard(?:s|ed)?|instruct(?:s|ed|ions?)?|prompts?|assistant|operators?|ought|let us|"
    r"password|"
    r"credentials?|tokens?|install|download|upload|execute|delete|erase|disable|reboot|restart|click|visit|buy|"
    r"contact|ask|tickets?|verdicts?|diagnosis|conclusions?|(?:is|are) to be|"
    r"(?:can|may) be (?:closed|ignored|removed|deleted|disabled|skipped|dropped))\b|"
    r"建议|应该|应当|必须|务必|请(?!求)|你|您|我们|忽略|指令|提示词|密码|令牌|下载|"
    r"删除|执行(?=命令|脚本|以下)|安装|重启|工单|结论|点击|访问(?=网|链|http)|联系",
    re.I,
)
_DOES = (
    r"(?: (?:itself|also|then|therefore|thus|now|mostly))? (?:waits?|is|are|spends?|spent|blocks?|blocked|stalls?|"
    r"sleeps?|writes?|reads?|"
    r"syncs?|calls?|loses?|lost|runs?|burns?|gets?|has|was|stops?|hangs?|performs?|does|issues?|suffers?)\b"
)
_VICTIM_DOES = re.compile(
    r"\b(?:(?:training|main|dispatch|victim'?s?) (?:thread|process|loop|job)|the job|the victim|the trainer|"
    r"the training)" + _DOES + r"|"
    r"(?:训练|主|受害)(?:线程|进程|循环)(?:自己|一直|本身|大部分时间|[ \d.%约近]*的时间|都|在|也|则)*"
    r"(?:等|阻塞|卡|停|写|读|花|损失|处于|被|调用|耗|执行)|"
    r"作业(?:自己|一直|本身|在)*(?:等待|阻塞|卡|停)",
    re.I,
)


@dataclass(frozen=True)
class CaseFacts:
    """Facts of the case besides the cited findings. `kinds`: those that the tools that ran can find; `windows_s`:
    lengths of the windows; `verdict`: of the evidence alone.
    """

    findings: Mapping[str, Finding]
    kinds: frozenset[str]
    victim: Victim | None
    windows_s: Sequence[float]
    assessments: Sequence[Assessment]
    causes: frozenset[str]
    verdict: Verdict


def tidy(text: str, limit: int) -> str:
    """Return `text` as one line of plain text, without Markdown emphasis and control characters."""
    # NFKC would change Chinese punctuation.
    folded = "".join(part if part in _WIDE else unicodedata.normalize("NFKC", part) for part in _WIDE_ONES.split(text))
    folded = re.sub(r"\*\*|(?<!\w)__|__(?!\w)", "", " ".join(folded.split()))
    folded = re.sub(r"`([^`]*)`", r"\1", folded)
    return clean(folded, limit)


def fault(text: str, cited: Sequence[str], case: CaseFacts) -> Fault | None:
    """Return the fault of the claim `text` that cites the ids `cited`; None if the findings support it."""
    wanted = list(dict.fromkeys([*cited, *_IDS.findall(text)]))
    missing = [i for i in wanted if i not in case.findings]
    if missing or not cited:
        return "no_finding", ", ".join(missing)
    findings = [case.findings[i] for i in wanted]
    text = re.sub(r"\bn ?= ?(?=\d)", "", text)  # "n = 12": a number of samples
    spaced = re.sub(r"([，。；：！？（）、])", r" \1 ", _REFERENCE.sub(" ", text))  # punctuation is no part of a name
    prose = unicodedata.normalize("NFKC", spaced).replace("->", "→").replace("(s)", "s")
    prose = re.sub(r"\*\*|(?<!\w)__|__(?!\w)", "", prose)
    return (
        _cause_named(prose, case)
        or _words(prose, findings, case)
        or _components(prose, findings, case)
        or _blame(prose, findings, case)
        or _states(prose, findings)
        or _about_another(prose, findings, case)
        or _empty(prose, findings, case)
    )


def _cause_named(prose: str, case: CaseFacts) -> Fault | None:
    """Check ids of causes: a supported one may be named, any other only denied."""
    states = {a.cause: a.state for a in case.assessments}
    for clause in CLAUSES.split(prose):
        for cause in _CAUSE.findall(clause):
            if cause in case.causes:
                supported = states.get(cause) is CauseState.SUPPORTED
                if supported is bool(DENIED.search(clause)):
                    return "contradicted", cause
    return None


def _words(prose: str, findings: Sequence[Finding], case: CaseFacts) -> Fault | None:
    """Check for advice, then names and numbers."""
    known = names.names(findings) | _names_of_case(findings, case)
    without = names.without_names(prose, known)
    advice = _ADVICE.search(without)
    if advice is not None:
        return "advice", advice.group(0)
    without = _SERVES.sub(" ", without) if any(name.lower() == "fuse" for name in known) else without
    ours = names.without_ours(_CAUSE.sub(lambda m: " " if m.group(0) in case.causes else m.group(0), without))
    ours = _without_scheduler_states(ours, findings)
    place = names.address(ours)
    if place is not None:
        return "name", place
    number = numbers.unsupported(ours, _facts(findings, case))
    if number is not None:
        return "number", number
    name = names.unknown(blanked(ours))
    return ("name", name) if name is not None else None


def _without_scheduler_states(text: str, findings: Sequence[Finding]) -> str:
    """Return `text` without scheduler states of the findings: "state D", "D state", "D 状态"."""
    letters = {f.attributes["state"] for f in findings if len(f.attributes.get("state", "")) == 1}
    if not letters:
        return text
    group = "[" + "".join(sorted(letters)) + "]"
    return re.sub(rf"(?<![A-Za-z0-9])(?:(?<=state ){group}|{group}(?=[ -]?(?:state|状态)))(?![A-Za-z0-9])", " ", text)


def _names_of_case(findings: Sequence[Finding], case: CaseFacts) -> set[str]:
    """Return the victim's name, if a finding is about it, and the calls in which supported causes block it."""
    victim = case.victim
    if victim is None or not victim.comm or not any(_own(f, victim) for f in findings):
        return set()
    supporting = {i for a in case.assessments if a.state is CauseState.SUPPORTED for i in a.for_}
    own = [f for f in case.findings.values() if f.id in supporting and _own(f, victim)]
    return {victim.comm, *([victim.host] if victim.host else []), *names.calls(own)}


def _own(finding: Finding, victim: Victim) -> bool:
    subject = finding.subject
    named = (subject.pid, subject.tid, subject.rank) != (None, None, None)
    return named and about(finding, victim)


def _facts(findings: Sequence[Finding], case: CaseFacts) -> list[Fact]:
    """Return every value that the claim may state."""
    found: list[Fact] = []
    for finding in findings:
        units = finding.spec.metrics
        for name, value in finding.metrics.items():
            own = OF_CALLS if finding.kind.startswith("file.") and name in _SPLIT else ""
            own = WAITED if finding.kind in _WAITED and name == "window_pct" else own
            own = RAN if finding.kind == "path.running" and name == "window_pct" else own
            found += numbers.facts(f"{own}{name}", value, units[name])
        subject = finding.subject
        found += [Fact("pid", float(n)) for n in (subject.pid, subject.tid) if n is not None]
        found += [Fact("rank", float(subject.rank))] if subject.rank is not None else []
        found += [Fact("unit", float(n)) for n in re.findall(r"\d+", subject.device or "")[:4]]
    for finding in findings:
        used, limit = (finding.metrics.get(name) for name in ("usage_bytes", "limit_bytes"))
        found += [Fact("pct", 100.0 * used / limit, OF_LIMIT)] if used is not None and limit else []
    found.append(Fact("devices", float(len({f.subject.device for f in findings if f.subject.device}))))
    found.append(Fact("threads", float(len({f.subject.tid for f in findings if f.subject.tid is not None}))))
    for number in names.numbers_in(findings):
        found += [Fact(dim, float(number)) for dim in ("pid", "rank", "cpu", "unit", "line")]
    for window in case.windows_s:
        found += numbers.facts(WINDOW, window, "s")
    victim = case.victim
    if victim is not None and any(_own(f, victim) for f in findings):
        for share in ("user", "system", "runnable", "blocked", "idle", "lost"):
            found += numbers.facts(f"{OF_VICTIM}{share}_pct", getattr(victim, f"{share}_pct"), "pct")
        found += [Fact("pid", float(n)) for n in (victim.pid, victim.tid)]
    ids = {f.id for f in findings}
    for a in case.assessments:
        if a.state is CauseState.SUPPORTED and ids & set(a.for_):
            found += numbers.facts(f"{OF_VICTIM}explained_pct", a.explained_pct, "pct")
    return found


def _components(prose: str, findings: Sequence[Finding], case: CaseFacts) -> Fault | None:
    """Check components: each must have been examined, and the cited findings must be about it and agree."""
    known = names.names(findings) | _names_of_case(findings, case)
    bare = names.without_names(prose, known)
    paths = names.without_names(prose, known, words=False)
    if any(name.lower() == "fuse" for name in known):  # a FUSE file system is served by a process
        paths, bare = (_SERVES.sub(" ", text) for text in (paths, bare))
    kinds = {topic for f in findings for topic in components.topics(f)}
    examined = components.topics_of_kinds(case.kinds)
    everything = examined.union(*map(components.topics, case.findings.values()))
    for name, words in components.named(paths):
        component = components.load_components()[name]
        if not component.of(everything):
            if any(name == other for other, _ in components.named(bare)):
                return "not_examined", words
            continue
        if not component.of(kinds):
            return ("not_examined" if not component.of(examined) else "no_finding"), words
        if component.fault and (wrong := _accused(name, component.of(kinds), paths, findings)):
            return wrong
    return None


def _states(prose: str, findings: Sequence[Finding]) -> Fault | None:
    words = state_words.contradiction(prose, findings) or path_states.contradiction(prose, findings)
    return None if words is None else ("contradicted", words)


def _empty(prose: str, findings: Sequence[Finding], case: CaseFacts) -> Fault | None:
    """Refuse a sentence without a number, name or component of the cited findings."""
    bare = names.without_names(prose, names.names(findings) | _names_of_case(findings, case))
    if case.verdict is Verdict.HEALTHY and _ALL_WELL.search(prose):
        return None
    spoken = bare != prose or blanked(bare) != bare or components.named(prose) or _WAITS.search(prose)
    return None if spoken else ("no_finding", "")


def _accused(name: str, kinds: set[str], text: str, findings: Sequence[Finding]) -> Fault | None:
    """Check a component that is faulty only if a finding is abnormal, and may be denied only if none is."""
    concerned = [f for f in findings if components.topics(f) & kinds]
    bad = [f for f in concerned if f.polarity is Polarity.ABNORMAL]
    for clause in CLAUSES.split(text):
        for _, words in (found for found in components.named(clause) if found[0] == name):
            if not bad and not DENIED.search(clause.lower().replace(words, " ")):
                return "contradicted", words
            before = clause[: clause.lower().index(words)]
            if len(bad) == len(concerned) and FLATLY.search(before):
                return "contradicted", words
    return None


def _blame(prose: str, findings: Sequence[Finding], case: CaseFacts) -> Fault | None:
    """Refuse blame by normal findings alone, praise by abnormal ones, and a healthy job if the verdict is another."""
    judged = [f for f in findings if f.kind not in _NEUTRAL]
    abnormal = [f for f in judged if f.polarity is Polarity.ABNORMAL]
    for clause in CLAUSES.split(prose):
        denied = DENIED.search(clause)
        accused = _ACCUSES.search(clause)
        lacks = _LACKS.search(clause)
        if lacks and not DENIED.search(clause.replace(lacks.group(0), " ")):
            accused, denied = lacks, None
        if accused and not denied and not abnormal and (judged or case.verdict.no_fault):
            return "contradicted", accused.group(0)
        well = _WELL.search(clause)
        if well and judged and len(abnormal) == len(judged):
            return "contradicted", well.group(0)
        healthy = _ALL_WELL.search(clause)
        other = any(f.subject.device and f.subject.device in clause for f in findings) or (
            re.search(r"\bhost\b", clause) and any(f.subject.type == "host" for f in findings)
        )
        if healthy and not other and case.verdict is not Verdict.HEALTHY and not components.named(clause):
            return "contradicted", healthy.group(0)
    return None


def _about_another(prose: str, findings: Sequence[Finding], case: CaseFacts) -> Fault | None:
    """Refuse findings about another thread or process as statements about the victim."""
    victim = case.victim
    if victim is None:
        return None
    others = [f for f in findings if (f.subject.pid, f.subject.tid, f.subject.rank) != (None, None, None)]
    if not others or any(about(f, victim) for f in others):
        return None
    named = victim.comm and victim.comm not in {f.subject.comm for f in others}
    by_name = re.search(rf"(?<![\w./-]){re.escape(victim.comm)}(?: \(\d+\))?{_DOES}", prose) if named else None
    match = by_name or _VICTIM_DOES.search(prose)
    if match is None or re.match(r" not\b| never\b|n't\b|n’t\b", prose[match.end() :]):
        return None
    return "subject", match.group(0)
