"""What the knowledge base holds: causes, incidents, diagnoses and tickets. All are plain data."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.result import Coverage

SCHEMA_VERSION = "1"
Lang = Literal["en", "zh"]


class Model(BaseModel):
    """Base: unknown fields are refused, so that a foreign or newer record is noticed."""

    model_config = ConfigDict(extra="forbid")


class Words(Model):
    """One text in both languages."""

    en: str
    zh: str

    def get(self, lang: Lang) -> str:
        """The text in `lang`."""
        return self.en if lang == "en" else self.zh


# --- causes -----------------------------------------------------------------------------------------------


class Pattern(Model):
    """Matches findings. All given conditions must hold.

    `victim`: the finding's subject must be the victim (same thread; for process, host, device and cgroup
    subjects: same process, or no thread given). `min` / `max` bound metrics (inclusive) in the units
    `KINDS` declares, or a ratio of two (``count/episodes``); a metric that is absent does not satisfy a
    bound. `attributes` lists the words allowed per attribute, as shell patterns (``pwrite*``). See
    `causes.matches`.
    """

    kind: str
    polarity: Polarity = Polarity.ABNORMAL
    victim: bool = True
    min: dict[str, float] = Field(default_factory=dict)
    max: dict[str, float] = Field(default_factory=dict)
    attributes: dict[str, list[str]] = Field(default_factory=dict)


class Remedy(Model):
    """What to do. `gain` and `effort`: 1 (small) to 3 (large); remedies are ranked by gain, then by low
    effort.
    """

    id: str
    text: Words
    gain: int = Field(ge=1, le=3)
    effort: int = Field(ge=1, le=3)


class Cause(Model):
    """Why a job stalls, as data; adding one adds no code.

    `primary`: at least one must match, or the cause is no candidate; the share of the victim's lost time it
    explains is the largest `window_pct` among matching primary findings. `required`, where not empty: at
    least one of it must match too, else the cause is unsupported (a device is blamed only if the device was
    seen to be slow). `less`: what these findings account for is taken from the share of the primary ones, which
    measure the same time without saying who had it; where less than a stall is left, the cause is not supported,
    and not ruled out either. `supporting` findings corroborate. `against`: any match rules the cause out.
    `refuted`: when the tools in `examined_by` ran, one of these matches (usually a normal measurement) and the
    cause is not supported (no primary, or none required), the cause is ruled out by them.
    `examined_by`: tools that can tell. `symptoms`: the cause is considered only where the symptom names
    every concept of one of these lists (see ``glossary.yaml``); empty: always. `specificity` breaks ties
    between causes that explain the same time: the more specific one is named.

    `same_file`, where not empty: a primary finding that names a file counts only if one of these is about that file
    (its series), if any was found: reads are slow because of evictions only where that file's pages were evicted.
    `culprits`, where not empty: at least one must match too, and says who does it, where that is another process or
    another file than what the victim waits in; it is named in the diagnosis. `signs`, where not empty: after the
    first look a closer one is taken for this cause only if one of these was found, whatever polarity it says.
    `estimates`: primary findings that count only as long as nothing in `measured` was found, whatever polarity it
    says: time in the kernel may be reclaim, until reclaim itself was timed. `rivals`: causes that stay open beside
    this one where they are supported, although they rest on the same evidence and are less specific.
    """

    id: str
    title: Words
    summary: Words
    category: Literal["storage", "cpu", "memory", "lock", "network", "accelerator", "none"]
    component: str
    primary: list[Pattern] = Field(min_length=1)
    required: list[Pattern] = Field(default_factory=list)
    less: list[Pattern] = Field(default_factory=list)
    supporting: list[Pattern] = Field(default_factory=list)
    against: list[Pattern] = Field(default_factory=list)
    refuted: list[Pattern] = Field(default_factory=list)
    examined_by: list[str] = Field(min_length=1)
    symptoms: list[list[str]] = Field(default_factory=list)
    same_file: list[Pattern] = Field(default_factory=list)
    culprits: list[Pattern] = Field(default_factory=list)
    signs: list[Pattern] = Field(default_factory=list)
    estimates: list[Pattern] = Field(default_factory=list)
    measured: list[Pattern] = Field(default_factory=list)
    rivals: list[str] = Field(default_factory=list)
    specificity: int = Field(default=1, ge=1, le=5)
    remedies: list[Remedy] = Field(min_length=1)
    verify: Words


# --- incidents --------------------------------------------------------------------------------------------


class Note(Model):
    """A further remedy of a card, told when a later ticket of the same fault was resolved. `reviewed`: somebody has
    read it since. `at` is RFC 3339.
    """

    text: str
    ticket: str = ""
    at: str
    reviewed: bool = False


class Deed(Model):
    """What was done to a card, by whom and when (RFC 3339)."""

    what: Literal["drafted", "added", "imported", "noted", "edited", "reviewed", "retired"]
    by: str = ""
    at: str
    because: str = ""


class Incident(Model):
    """A card: a past incident, in our own words, with its source.

    `symptom` is what was seen at first, before the cause was known: nothing found out later stands there. `signatures`
    are exact keys (see `signatures.py`), `kinds` the kinds of findings that told it, `features` further typed facts
    (see `features.py`), `checks` the tools whose looks decided it. `state`: a ``draft`` was made by nobody who answers
    for it; only a ``reviewed`` card is quoted as known; a ``retired`` one is kept and not matched. `created` and
    `updated` are RFC 3339, empty for curated cards. `notes` are further remedies, `history` the life of the card here.
    """

    id: str
    title: Words
    symptom: Words
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
    history: list[Deed] = Field(default_factory=list)


class Occurrence(Model):
    """One outage in which the incident of a card was seen. `key` is unique within the card (``ticket:ID``, else
    ``diagnosis:ID`` of the first sighting): what is told twice counts once. `seen`: the latest sighting, RFC 3339.
    """

    key: str
    seen: str
    host: str = ""


class Feedback(Model):
    """What somebody said of a match. One says it once per diagnosis; the last word counts."""

    incident: str
    diagnosis: str
    verdict: Literal["helped", "wrong"]
    comment: str = ""
    at: str


class Record(Model):
    """How well matches of a card went: counts of feedback. `flagged`: rejected so often that it wants a review."""

    helped: int = 0
    wrong: int = 0
    flagged: bool = False


class Match(Model):
    """A past incident that resembles a case.

    `how`: an exact signature, the same evidence, or words. `shared` says why: what both have, as ``signature``,
    ``kind:``, ``feature:`` or ``word:`` codes. `known`: the card is reviewed, and what is shared tells it from others:
    it may be quoted as a known incident. `unchecked`: tools that decided the past case and have not run in this one.
    `weak`: it shares too little with a question or a case to answer it, and is only the nearest. `occurrences` with the
    first one; `last_seen` is RFC 3339, None for what only the literature saw. `fix`: what solved it, of a known one.
    """

    incident: str
    title: Words
    how: Literal["signature", "evidence", "text"]
    shared: list[str]
    rank: int = Field(ge=1)
    known: bool = False
    weak: bool = False
    state: Literal["draft", "reviewed", "retired"] = "reviewed"
    unchecked: list[str] = Field(default_factory=list)
    occurrences: int = 1
    last_seen: str | None = None
    fix: Words | None = None
    record: Record = Field(default_factory=Record)


# --- diagnoses --------------------------------------------------------------------------------------------


class Verdict(str, Enum):
    """`CONFIRMED`: two mechanisms agree, rivals ruled out. `LIKELY`: one is missing. `HEALTHY`: looked,
    found nothing abnormal.
    """

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    INCONCLUSIVE = "inconclusive"
    HEALTHY = "healthy"


class Victim(Model):
    """The thread that makes progress, and where its time went, in percent of the window. `lost_pct` is what
    a fault may explain: blocked, runnable without a CPU, or in the kernel, and the time that an accelerator
    waited for it; waiting by intention (sleep, poll) is `idle_pct`.

    From the traces of a job's ranks alone it is a ``rank`` (or the ``job``): `lost_pct` is then what the job
    loses to it, and the shares are unknown (0). `rank`, `host`: of the rank, also of a thread that runs it;
    `pid` 0: unknown.
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
    """Where a cause stands after the evidence."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"
    RULED_OUT = "ruled_out"
    NOT_EXAMINED = "not_examined"


class Assessment(Model):
    """One cause judged. `explained_pct`: share of the victim's lost time, `window_pct`: share of the window,
    percent. `by`: the tools that decided it.
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
    """Who does it to the victim: a process and what it works on, ``*`` for a series. `rate`: bytes per second, None
    where not measured. `cgroup`, `container`, `pod`: where it runs.
    """

    pid: int | None = None
    comm: str | None = None
    path: str | None = None
    cgroup: str | None = None
    container: str | None = None
    pod: str | None = None
    rate: float | None = None


class Culprit(Model):
    """Who, where, how long. Latencies in ms, `period_s` in seconds; what was not measured is None. `path`
    is a full path; `series` its numbered series (``chk_*.bin``) when several files of one are meant, `path`
    then the slowest. `code`: the line of the program that waited, ``save (train.py:212)``. `rank`: of a job, `name`
    what of its work (an operator, a group), `per_step_ms` what it costs every step. `actors`: who causes it, the worst
    first, where that is not what the victim waits in.
    """

    pid: int | None = None
    tid: int | None = None
    comm: str | None = None
    path: str | None = None
    series: str | None = None
    syscall: str | None = None
    operations: str | None = None
    device: str | None = None
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
    container: str | None = None
    pod: str | None = None


class Step(Model):
    """One look: which tools ran in one window, why they were chosen, and what they found."""

    tools: list[str]
    why: str
    window_s: float
    findings: list[str]
    status: dict[str, str]


class Claim(Model):
    """One sentence of a model's explanation, kept because every number and name in it occurs in the findings cited."""

    text: str
    findings: list[str] = Field(min_length=1)


class Usage(Model):
    """What a model was asked for. `seconds`: waiting for its answers; `money` in the currency of the prices that were
    set, None without prices.
    """

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    money: float | None = None


class Reasoning(Model):
    """How a model drove a case. `story`: its causal chain, from the stall back to its origin. `struck`: codes of the
    claims that were taken out because nothing supports them, by what was wrong (`grounding`); their text is kept in the
    transcript only. `remedies`: ids of the cause's remedies that it would try first. `stopped`: code of why the rules
    had to finish, None where the model concluded. `transcript`: uri.
    """

    model: str
    story: list[Claim] = Field(default_factory=list)
    remedies: list[str] = Field(default_factory=list)
    struck: list[str] = Field(default_factory=list)
    stopped: str | None = None
    usage: Usage = Field(default_factory=Usage)
    transcript: str | None = None


class Diagnosis(Model):
    """The answer to "why does it stall". `chain` lists finding ids from the stall back to its origin;
    `missing` holds codes of what a higher verdict would have needed. `reasoning`: where a model drove.
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
    steps: list[Step] = Field(default_factory=list)
    coverage: list[Coverage] = Field(default_factory=list)
    matches: list[Match] = Field(default_factory=list)
    artifacts: list[str] = Field(default_factory=list)
    recording: str | None = None
    ticket: str | None = None
    reasoning: Reasoning | None = None
