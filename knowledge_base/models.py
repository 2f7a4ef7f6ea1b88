"""Records of the knowledge base: causes, incidents, diagnoses. Plain data."""

from __future__ import annotations

from enum import Enum
from itertools import chain
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whystall.knowledge_base.account_row import AccountRow
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.result import Coverage
from whystall.tools.history.path_data import PathDifference
from whystall.tools.known_fixes.rows import DefectRow

SCHEMA_VERSION = "1"
Lang = Literal["en", "zh"]


class Model(BaseModel):
    """Base class: unknown fields are refused, so that a foreign or newer record is detected."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Words(Model):
    en: str
    zh: str

    def get(self, lang: Lang) -> str:
        return self.en if lang == "en" else self.zh


class Pattern(Model):
    """Conditions on a finding, all of which must hold.

    `victim`: the finding's subject must be the victim (same thread; for process, host, device and cgroup subjects: same
    process, or no thread given). `min` / `max`: inclusive bounds of metrics in the units of `KINDS`, or of a ratio of
    two (``count/episodes``); a missing metric fails. `attributes`: allowed values per attribute, as shell patterns
    (``pwrite*``); a missing attribute is the empty text. `unless`: the same for values that no attribute may have.
    `symptoms`: it counts only if the symptom names every concept of one of these lists. See `causes.matches`.
    """

    kind: str
    polarity: Polarity = Polarity.ABNORMAL
    victim: bool = True
    min: dict[str, float] = Field(default_factory=dict)
    max: dict[str, float] = Field(default_factory=dict)
    attributes: dict[str, list[str]] = Field(default_factory=dict)
    unless: dict[str, list[str]] = Field(default_factory=dict)
    symptoms: list[list[str]] = Field(default_factory=list)


class Remedy(Model):
    """An action. `gain` and `effort`: 1 (small) to 3 (large); ranked by gain, then by low effort.

    `suits`: if not empty, the evidence for which it is meant (`victim` has no effect here): it comes first if the
    evidence of a diagnosis has one of these, else last.
    """

    id: str
    text: Words
    gain: int = Field(ge=1, le=3)
    effort: int = Field(ge=1, le=3)
    suits: list[Pattern] = Field(default_factory=list)


class Cause(Model):
    """Why a job stalls, as data.

    `primary`: at least one must match; the largest `window_pct` among the matching ones is the share of time that the
    cause explains. `required`: if not empty, at least one must match too (a device is blamed only if it was slow).
    `less`: time that these findings account for is subtracted from the primary ones, which measure the same time
    without attribution; if less than a stall is left, the cause is neither supported nor ruled out. `supporting`:
    findings that corroborate. `against`: any match rules the cause out. `refuted`: if the tools in `examined_by` ran,
    one of these (usually normal measurements) matches and the cause is not supported, it is ruled out by them.
    `examined_by`: tools that can decide. `symptoms`: the cause is considered only if the symptom names every concept of
    one of these lists (see ``glossary.yaml``); empty: always. `specificity`: the more specific of two causes that
    explain the same time is named.

    `same_file`: if not empty, a primary finding with a file counts only if one of these is about that file (its
    series), if any was found: reads are slow because of evictions only if that file's pages were evicted.
    `same_device`: the same for the disk of a file, where it is known: a limit holds back operations on its disk only;
    of the other patterns' findings those about other disks do not count either.
    `culprits`: if not empty, at least one must match too; it names the actor if that is another process or file than
    the victim's. `signs`: if not empty, further tools are run for the cause only if one of these was found, of any
    polarity.
    `estimates`: primary findings that count only until something in `measured` was found: time in the kernel may be
    reclaim until reclaim itself was timed; `exact`: those that count only from then on. `rivals`: causes that stay open
    beside this one, although less specific and supported by the same evidence.

    `in_logs`: if only logs were read, which show no thread that waits, one of these or of `required` supports the
    cause.

    `ordinary`: healthy programs show it too (they compute, sleep, wait for a device). It is considered only if a
    symptom was reported, explains a share of the window instead of the lost time, and does not lead if another cause
    does. `stall_pct`: least share of the window for which the cause is named; less than the usual 5 only where the
    symptom itself is a short pause.
    """

    id: str
    title: Words
    summary: Words
    category: Literal["storage", "cpu", "memory", "lock", "network", "accelerator", "software", "none"]
    component: str
    primary: list[Pattern] = Field(min_length=1)
    required: list[Pattern] = Field(default_factory=list)
    in_logs: list[Pattern] = Field(default_factory=list)
    less: list[Pattern] = Field(default_factory=list)
    supporting: list[Pattern] = Field(default_factory=list)
    against: list[Pattern] = Field(default_factory=list)
    refuted: list[Pattern] = Field(default_factory=list)
    examined_by: list[str] = Field(min_length=1)
    symptoms: list[list[str]] = Field(default_factory=list)
    same_file: list[Pattern] = Field(default_factory=list)
    same_device: list[Pattern] = Field(default_factory=list)
    culprits: list[Pattern] = Field(default_factory=list)
    signs: list[Pattern] = Field(default_factory=list)
    estimates: list[Pattern] = Field(default_factory=list)
    exact: list[Pattern] = Field(default_factory=list)
    measured: list[Pattern] = Field(default_factory=list)
    rivals: list[str] = Field(default_factory=list)
    specificity: int = Field(default=1, ge=1, le=5)
    ordinary: bool = False
    stall_pct: float = Field(default=5.0, ge=1, le=50)
    remedies: list[Remedy] = Field(min_length=1)
    verify: Words

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the findings that its patterns can match."""
        evidence = chain(self.primary, self.required, self.less, self.supporting, self.against, self.refuted)
        limits = chain(self.same_file, self.culprits, self.signs, self.estimates, self.measured)
        return frozenset(pattern.kind for pattern in chain(evidence, limits))


class Note(Model):
    """A further remedy, from a later ticket of the same fault. `reviewed`: by a person. `at`: RFC 3339."""

    text: str
    ticket: str = ""
    at: str
    reviewed: bool = False


class HistoryEntry(Model):
    """An entry of a card's history. `at`: RFC 3339."""

    what: Literal["drafted", "added", "imported", "noted", "edited", "reviewed", "retired"]
    by: str = ""
    at: str
    because: str = ""


class Phrasings(Model):
    """How people on call may describe the symptom of a card, not knowing its cause: synonyms, lay words, messages."""

    en: list[str] = Field(default_factory=list)
    zh: list[str] = Field(default_factory=list)


class Incident(Model):
    """A card: a past incident, with its source.

    `symptom`: as first observed, without anything found out later. `phrasings`: other words for it, which are searched
    and state no fact. `signatures`: exact keys (see `signatures.py`);
    `kinds`: kinds of its findings; `features`: further typed facts (see `features.py`); `checks`: tools that decided
    it. `state`: a ``draft`` is not reviewed; only a ``reviewed`` card is quoted as known; a ``retired`` one is kept and
    not matched. `created`, `updated`: RFC 3339, empty for curated cards. `notes`: further remedies; `history`: changes
    made here.
    """

    id: str
    title: Words
    symptom: Words
    phrasings: Phrasings = Field(default_factory=Phrasings)
    cause: str | None
    root_cause: Words
    fix: Words
    signatures: list[str] = Field(default_factory=list)
    kinds: list[str] = Field(default_factory=list)
    features: list[str] = Field(default_factory=list)
    checks: list[str] = Field(default_factory=list)
    components: list[str] = Field(default_factory=list)
    environment: str = ""
    source: str
    source_url: str = ""
    origin: Literal["curated", "ticket", "user"] = "curated"
    state: Literal["draft", "reviewed", "retired"] = "reviewed"
    created: str = ""
    updated: str = ""
    notes: list[Note] = Field(default_factory=list)
    history: list[HistoryEntry] = Field(default_factory=list)


class Feedback(Model):
    """Feedback on a match; one per diagnosis, the latest replaces earlier ones."""

    incident: str
    diagnosis: str
    verdict: Literal["helped", "wrong"]
    comment: str = ""
    at: str


class Record(Model):
    """Counts of feedback on a card's matches. `flagged`: rejected often enough to need a review."""

    helped: int = 0
    wrong: int = 0
    flagged: bool = False


class Match(Model):
    """A past incident similar to a case.

    `how`: exact signature, same evidence, or words. `shared`: what both have, as ``signature``, ``kind:``, ``feature:``
    or ``word:`` codes. `known`: the card is reviewed and what is shared identifies it, so that it may be quoted as a
    known incident. `unchecked`: tools that decided the past case and have not run in this one. `weak`: shares too
    little, only the nearest. `confidence`: how likely a match by words is right, 0 to 1. `occurrences`: including the
    first; `last_seen`: RFC 3339, None if it never occurred here. `fix`: what solved it, for a known one. `judged`: a
    language model judged that it describes the same mechanism, which nobody verified; it changes no other field.
    """

    incident: str
    title: Words
    how: Literal["signature", "evidence", "text"]
    shared: list[str]
    rank: int = Field(ge=1)
    known: bool = False
    weak: bool = False
    confidence: float | None = None
    state: Literal["draft", "reviewed", "retired"] = "reviewed"
    unchecked: list[str] = Field(default_factory=list)
    occurrences: int = 1
    last_seen: str | None = None
    fix: Words | None = None
    record: Record = Field(default_factory=Record)
    judged: bool = False


class Verdict(str, Enum):
    """`CONFIRMED`: two mechanisms agree, rivals ruled out. `LIKELY`: one of these is missing. `HEALTHY`: examined,
    nothing abnormal. `IDLE`: the process waits at its poll with no request in flight.
    """

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    INCONCLUSIVE = "inconclusive"
    HEALTHY = "healthy"
    IDLE = "idle"

    @property
    def no_fault(self) -> bool:
        """Whether the job was observed and no fault was found. An idle job may still have one under load."""
        return self in (Verdict.HEALTHY, Verdict.IDLE)


CRASHED = "crashed"
"""How a victim was chosen of which logs state that it failed; its times are not known."""


class Victim(Model):
    """The thread that makes progress, and its time in percent of the window. `lost_pct`: what a fault may explain:
    blocked, runnable without a CPU, in the kernel, or an accelerator waiting for it; `idle_pct`: intended waiting
    (sleep, poll).

    From rank traces alone it is a ``rank`` or the ``job``: `lost_pct` is what the job loses to it, and the other shares
    are unknown (0). `rank`, `host`: of the rank, also for a thread that runs one; `pid` 0: unknown.
    """

    type: Literal["thread", "rank", "job"] = "thread"
    rank: int | None = None
    host: str | None = None
    pid: int
    tid: int
    comm: str
    chosen_by: str
    user_pct: float
    system_pct: float
    runnable_pct: float
    blocked_pct: float
    idle_pct: float
    lost_pct: float


class CauseState(str, Enum):
    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    RULED_OUT = "ruled_out"
    NOT_EXAMINED = "not_examined"


class Assessment(Model):
    """One assessed cause. `explained_pct`: percent of the victim's lost time; `window_pct`: percent of the window.
    `by`: the tools that decided.
    """

    cause: str
    state: CauseState
    explained_pct: float = 0.0
    window_pct: float = 0.0
    for_: list[str] = Field(default_factory=list, alias="for")
    against: list[str] = Field(default_factory=list)
    by: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)


class Actor(Model):
    """A process that causes the stall, and the file it works on (``*`` for a series). `rate`: bytes per second, None if
    not measured. `cgroup`, `container`, `pod`: where it runs. `code`: its line, if the victim waits for it.
    """

    pid: int | None = None
    comm: str | None = None
    path: str | None = None
    cgroup: str | None = None
    container: str | None = None
    pod: str | None = None
    rate: float | None = None
    code: str | None = None


class Awaited(Model):
    """The thread at the end of the chain of waits: what it did while the victim waited. `thread`: its name and number,
    as in `root_by` of ``path.wait``; `code`: its line of the program; `object`: a file or peer."""

    thread: str
    pid: int
    tid: int
    code: str = ""
    object: str = ""


class Culprit(Model):
    """Where and how long the victim waits. Latencies in ms, `period_s` in seconds; None if not measured.

    `path`: full path, the slowest if several files of a `series` (``chk_*.bin``) are meant. `device`, `mount`: its
    disk, and where that is mounted; None if several could be meant. `code`: the waiting line of the program, ``save
    (train.py:212)``. `rank`: of a job; `name`: part of its work (an operator, a group); `per_step_ms`: cost per step.
    `actors`: processes that cause it, worst first, if other than what the victim waits in. `awaited`: the thread for
    which the victim waits at `code`.
    """

    pid: int | None = None
    tid: int | None = None
    comm: str | None = None
    path: str | None = None
    series: str | None = None
    syscall: str | None = None
    operations: str | None = None
    device: str | None = None
    mount: str | None = None
    cgroup: str | None = None
    kernel_path: str | None = None
    code: str | None = None
    count: int | None = None
    latency_ms: float | None = None
    max_ms: float | None = None
    period_s: float | None = None
    window_pct: float | None = None
    rank: int | None = None
    host: str | None = None
    name: str | None = None
    per_step_ms: float | None = None
    actors: list[Actor] = Field(default_factory=list)
    awaited: Awaited | None = None
    container: str | None = None
    pod: str | None = None


class Step(Model):
    """One observation: the tools that ran in one window, the code of why, and their findings."""

    tools: list[str]
    why: str
    window_s: float
    findings: list[str]
    status: dict[str, str]


Relation = Literal["causes", "waits_for", "explains_share_of", "rules_out", "is_symptom_of", "precedes"]
Role = Literal["", "holder", "waker", "peer", "neighbour", "file", "device"]


class Claim(Model):
    """A relation that a model claims and code has checked (`grounding.relations`).

    `subject`: id of a finding; `object`: id of a finding or a cause. `role`: what the thread of the one finding is to
    the other, which waits for it; empty: not claimed. `share_pct`: of the window, for ``explains_share_of``.
    """

    relation: Relation
    subject: str
    object: str
    role: Role = ""
    share_pct: float | None = Field(default=None, ge=0, le=100, allow_inf_nan=False)


class Check(Model):
    """A call of a tool that would test a hypothesis."""

    tool: str
    arguments: dict[str, bool | int | float] = Field(default_factory=dict)


class Unverified(Model):
    """Free text of a model, which nothing checks. `hypothesis`: why the job stalls; `narrative`: its explanation, with
    placeholders for values of findings (``{F3.window_pct}``); `proposed`: remedies of its own; `checks`: calls that
    would test the hypothesis.
    """

    hypothesis: str = ""
    narrative: str = ""
    proposed: list[str] = Field(default_factory=list)
    checks: list[Check] = Field(default_factory=list)


class Usage(Model):
    """Requests to a model. `seconds`: time waiting for answers; `money`: in the currency of the configured prices, None
    without prices.
    """

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    money: float | None = None


class Concluded(Model):
    """What is left of a model's conclusion. `claims`: relations that the findings support; `unverified`: its free text.
    `struck`: codes of what was refused (`grounding`), which is only in the transcript. `remedies`: ids of the remedies
    to try first. `stopped`: code of why the rules had to finish, None if the model concluded.
    """

    claims: list[Claim] = Field(default_factory=list)
    unverified: Unverified = Field(default_factory=Unverified)
    remedies: list[str] = Field(default_factory=list)
    struck: list[str] = Field(default_factory=list)
    stopped: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_story(cls, given: Any) -> Any:
        """Read records of older versions: sentences with citations, which are free text now."""
        if not isinstance(given, dict) or "story" not in given:
            return given
        story = given["story"] if isinstance(given["story"], list) else []
        text = " ".join(str(one["text"]) for one in story if isinstance(one, dict) and "text" in one)
        kept = {name: value for name, value in given.items() if name != "story"}
        return {**kept, "unverified": {"hypothesis": text}} if text and "unverified" not in kept else kept


class OtherProcess(Model):
    """A process that the model observed besides the target: the finding with the id `finding` names it as `role`.

    `findings` are of windows of their own and have ids of their own (P1, P2, ...); no verdict rests on them.
    """

    finding: str
    role: str
    pid: int
    tools: list[str]
    findings: list[Finding] = Field(default_factory=list)


class Reasoning(Concluded):
    """Result of a model-driven case. `others`: further processes that it observed. `transcript`: uri."""

    model: str
    usage: Usage = Field(default_factory=Usage)
    others: list[OtherProcess] = Field(default_factory=list)
    transcript: str | None = None


class Diagnosis(Model):
    """The answer to "why does it stall". `chain`: finding ids from the stall back to its origin; `missing`: codes of
    what a higher verdict lacks. `account`: where the victim's time went, largest first; sums to 100 % of the window,
    empty if its critical path was not observed. `compared`: with an earlier recording. `reasoning`: if a model drove.
    `known_fixes`: known defects of the versions in use that the case shows (relevant), or that have the same kind of
    symptom (possible).
    """

    schema_version: str = SCHEMA_VERSION
    id: str
    created: str
    target: str
    symptom: str = ""
    verdict: Verdict
    cause: str | None = None
    severity: Severity = Severity.INFO
    victim: Victim | None = None
    culprit: Culprit | None = None
    explained_pct: float = 0.0
    chain: list[str] = Field(default_factory=list)
    assessments: list[Assessment] = Field(default_factory=list)
    missing: list[str] = Field(default_factory=list)
    findings: list[Finding] = Field(default_factory=list)
    account: list[AccountRow] = Field(default_factory=list)
    compared: PathDifference | None = None
    steps: list[Step] = Field(default_factory=list)
    coverage: list[Coverage] = Field(default_factory=list)
    matches: list[Match] = Field(default_factory=list)
    known_fixes: list[DefectRow] = Field(default_factory=list)
    artifacts: list[str] = Field(default_factory=list)
    recording: str | None = None
    ticket: str | None = None
    reasoning: Reasoning | None = None
