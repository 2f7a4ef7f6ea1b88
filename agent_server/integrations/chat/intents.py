"""Recognise the intent of a message by the rules of `prompts.intents`. Pure.

A command that changes something must be the whole message, exactly as written; a read-only question is also recognised
from a few words and with a typing error.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from whystall.agent_server.job_lookup.models import Wanted
from whystall.agent_server.job_lookup.search_terms import may_be_name, search_terms
from whystall.prompts.intents import IntentRules, intent_rules

LIMIT = 1000
"""Maximum characters of a message; the rest is ignored."""
_TYPO = 0.8
_LONG = 5  # minimum letters of a word that is corrected
# Counts, sizes and products, not names of jobs: 33rd, 8x, cp=4, 7b, a100, 2gpus.
_COUNTED = re.compile(
    r"\d+(?:st|nd|rd|th|x|k|m|b|gb|mb|s|ms|h|min|fps)?|\w{1,3}=\d+|[abhvlt]\d{2,4}s?|(?:rtx|gtx)\d*|[a-z]\d|\d+(?:st|x)?gpus?"
)
# Parts of error messages: exceptions, error codes, variables of the environment, places in a source, i.e. and e.g.
_IN_ERRORS = re.compile(
    r"[\w.:]*(?:Error|Exception|Warning)|[A-Z]{2,4}\d{4,6}|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|"
    r"\S*\.(?:cpp|cc|cxx|cu|hpp|h|c|py)(?::\d+)+|[ei]\.[ge]\.?|\d[\d.]*\w{0,3}/\w{1,6}",
    re.ASCII,
)
# Separators of several questions in one message, and the intents that may be combined.
_BETWEEN = re.compile(
    r"[?;。\n]|,? *\b(?:and(?: then| also)?|then|also|plus)\b |,? *(?:再(?=[看查说列给])|顺便|还有|另外|然后|以及)",
    re.I,
)
_PARTS = 3
_LOOKED_UP = frozenset({"why", "on_call", "ticket", "tickets", "similar", "alerts", "silences", "jobs", "state"})
_CJK = re.compile(r"[\u3400-\u9fff]")
_WORD = re.compile(r"(?<![\w./-])[A-Za-z]{5,20}(?![\w./-])", re.ASCII)
# Words that typing errors are corrected to; none belongs to a command that changes something.
_KNOWN = (
    *("diagnose", "investigate", "training", "process", "stalled", "stalling", "blocked", "hanging", "slower", "stuck"),
    *("straggler", "stragglers", "critical", "severity", "escalate", "timeout", "dataloader", "diagnosis", "happened"),
    *("ticket", "tickets", "incident", "incidents", "similar", "oncall", "throughput", "checkpoint", "running"),
)


@dataclass(frozen=True)
class Intent:
    """What a message means. `changes`: is a command; `slots`: its arguments; `text`: the message without politeness."""

    name: str
    text: str
    lang: Literal["en", "zh"]
    changes: bool = False
    slots: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """Return a slot, or an empty string."""
        return self.slots.get(name, "")


def language(text: str) -> Literal["en", "zh"]:
    """Return the language of `text`: Chinese if it has any Chinese character."""
    return "zh" if _CJK.search(text) else "en"


def understand(text: str) -> Intent:
    """Return the intent of `text`; ``none`` if no rule matches."""
    known = intent_rules()
    text = " ".join(unicodedata.normalize("NFKC", text[:LIMIT]).split())
    lang = language(text)
    plain = _without_politeness(text, known)
    found = _by_rules(plain, lang, known)
    if found.name == "none" and (other := corrected(plain)) != plain:
        again = _by_rules(other, lang, known)
        if again.name != "none" and not again.changes:
            return again
    return found


def parts_of(text: str) -> list[Intent]:
    """Return the questions in `text` if there are several and each alone is a read-only one; else an empty list."""
    parts = [
        part.strip() for part in _BETWEEN.split(unicodedata.normalize("NFKC", text[:LIMIT])) if part.strip(" .!,。，")
    ]
    if not 2 <= len(parts) <= _PARTS:
        return []
    found = [understand(part) for part in parts]
    asks = all(one.name in _LOOKED_UP and not one.get("text") for one in found)
    asks = asks and sum(one.name == "why" for one in found) < 2  # else it is one symptom in two parts
    return found if asks and len({(one.name, one.text) for one in found}) == len(found) else []


def wanted_of(text: str) -> Wanted:
    """Return the job that `text` concerns; see `subject_of`."""
    return subject_of(text)[0]


def names_this_host(text: str) -> bool:
    """Return whether `text` names this machine itself."""
    return intent_rules().here.search(text) is not None


def subject_of(text: str) -> tuple[Wanted, bool]:
    """Return the job that `text` concerns (quoted, called a job, or looking like a name), and whether that is certain:
    an unknown word may also be a typing error.
    """
    quoted = re.search(r"[\"“「`]([^\"”」`]{1,200})[\"”」`]", text)
    if quoted is not None:
        return Wanted(text=quoted[1]), True
    known = intent_rules()
    found = search_terms(Wanted(text=text), ())
    exact = " ".join(f"{_PREFIX[kind]} {value}" for kind, value in found.exact if kind in _PREFIX)
    names = [name for name in found.names if may_be_name(name) and not _no_name(name, known)]
    called = _beside_noun(text, known)
    names = names or called
    marked = [name for name in names if re.search(r"[0-9_./-]", name)]
    sure = bool(exact.strip() or marked or set(called) & set(names))
    return Wanted(text=" ".join([exact, *(marked or names)]).strip(), rank=found.rank), sure


_PREFIX = {"pid": "pid", "slurm_job": "job", "container": "", "pod_uid": ""}


def _by_rules(text: str, lang: Literal["en", "zh"], known: IntentRules) -> Intent:
    for rule in known.rules:
        slots = rule.match(text)
        if slots is None:
            continue
        if rule.needs_subject and not _has_subject(text, known):
            continue
        if rule.changes and text.rstrip().endswith(("?", "?", "吗", "么")):
            continue
        return Intent(rule.intent, text, lang, rule.changes, slots)
    return Intent("none", text, lang)


def _has_subject(text: str, known: IntentRules) -> bool:
    """Return whether the text has a word for a job, or the name or number of one."""
    wanted = wanted_of(text)
    return bool(wanted.text) or wanted.rank is not None or names_this_host(text) or known.work.search(text) is not None


def _without_politeness(text: str, known: IntentRules) -> str:
    for pattern in (known.before, known.after):
        while (shorter := pattern.sub("", text).strip()) and shorter != text:
            text = shorter
    return text


def _no_name(name: str, known: IntentRules) -> bool:
    lowered = name.lower()
    if (
        _COUNTED.fullmatch(lowered)
        or _IN_ERRORS.fullmatch(name)
        or all(part in known.stop for part in re.split(r"[-_/]", lowered))
    ):
        return True
    return (
        lowered in known.stop or known.work.fullmatch(lowered) is not None or known.slow.fullmatch(lowered) is not None
    )


def _beside_noun(text: str, known: IntentRules) -> list[str]:
    """Return a plain word that follows a noun for jobs: "job trainer", "作业 trainer"."""
    noun = r"(?:jobs?|runs?|process|pod|container|experiment|called|named|作业|任务|进程|容器|实验|叫|名为)"
    for match in re.finditer(rf"(?<![\w.-]){noun}[ :：]*(?P<job>[A-Za-z][\w.-]*)", text, re.IGNORECASE | re.ASCII):
        if not _no_name(match["job"], known) and not known.look.fullmatch(match["job"].lower()):
            return [match["job"]]
    return []


def corrected(text: str) -> str:
    """Return `text` with typing errors in common words corrected; for questions and searches only."""
    return _WORD.sub(lambda match: _nearest(match[0].lower()) or match[0], text)


@cache
def _nearest(word: str) -> str:
    close = difflib.get_close_matches(word, _KNOWN, 1, _TYPO) if len(word) >= _LONG else []
    return close[0] if close else ""
