"""What somebody means: the rules of `prompts.intents` applied to what was said. Pure.

A command that changes something must be all that is said, and is taken only as it is written; what only looks is also
understood from a few words, and with a letter wrong.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from whystall.agent_server.integrations.job_lookup.models import Wanted
from whystall.agent_server.integrations.job_lookup.search_terms import may_be_name, search_terms
from whystall.prompts.intents import IntentRules, intent_rules

LIMIT = 1000
"""Characters of a message that are understood; a longer one is read up to there."""
_TYPO = 0.8
_LONG = 5  # letters from which on one may be wrong
# 33rd, 8x, cp=4, 7b, a100, 2gpus: a count, a size or a product, and nobody's name.
_COUNTED = re.compile(
    r"\d+(?:st|nd|rd|th|x|k|m|b|gb|mb|s|ms|h|min|fps)?|\w{1,3}=\d+|[abhvlt]\d{2,4}s?|(?:rtx|gtx)\d*|[a-z]\d|\d+(?:st|x)?gpus?"
)
# Two things in one message; and what of it is only looked up.
_BETWEEN = re.compile(
    r"[?;。\n]|,? *\b(?:and(?: then| also)?|then|also|plus)\b |,? *(?:再(?=[看查说列给])|顺便|还有|另外|然后|以及)",
    re.I,
)
_PARTS = 3
_LOOKED_UP = frozenset({"why", "on_call", "ticket", "tickets", "similar", "alerts", "silences", "jobs"})
_CJK = re.compile(r"[\u3400-\u9fff]")
_WORD = re.compile(r"(?<![\w./-])[A-Za-z]{5,20}(?![\w./-])", re.ASCII)
# What may be corrected: words that decide what is meant, none of them of a command that changes something.
_KNOWN = (
    *("diagnose", "investigate", "training", "process", "stalled", "stalling", "blocked", "hanging", "slower", "stuck"),
    *("ticket", "tickets", "incident", "incidents", "similar", "oncall", "throughput", "checkpoint", "running"),
)


@dataclass(frozen=True)
class Intent:
    """What is meant. `changes`: it is a command that changes something. `slots`: what was understood of it. `lang`: in
    which it was said. `text`: what was said, without politeness.
    """

    name: str
    text: str
    lang: Literal["en", "zh"]
    changes: bool = False
    slots: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str:
        """A slot; empty where nothing was said of it."""
        return self.slots.get(name, "")


def language(text: str) -> Literal["en", "zh"]:
    """The language in which `text` is written: Chinese where any of it is."""
    return "zh" if _CJK.search(text) else "en"


def understand(text: str) -> Intent:
    """What `text` means; ``none`` where it is nothing of what we do."""
    known = intent_rules()
    said = " ".join(unicodedata.normalize("NFKC", text[:LIMIT]).split())
    lang = language(said)
    plain = _without_politeness(said, known)
    found = _by_rules(plain, lang, known)
    if found.name == "none" and (corrected := _corrected(plain)) != plain:
        again = _by_rules(corrected, lang, known)
        if again.name != "none" and not again.changes:
            return again
    return found


def parts_of(text: str) -> list[Intent]:
    """The questions in `text`, where it asks more than one thing and each of them alone is understood as one that only
    looks something up; else none.
    """
    said = [
        part.strip() for part in _BETWEEN.split(unicodedata.normalize("NFKC", text[:LIMIT])) if part.strip(" .!,。，")
    ]
    if not 2 <= len(said) <= _PARTS:
        return []
    found = [understand(part) for part in said]
    asks = all(one.name in _LOOKED_UP and not one.get("text") for one in found)
    asks = asks and sum(one.name == "why" for one in found) < 2  # else it is one symptom, told in two parts
    return found if asks and len({(one.name, one.text) for one in found}) == len(found) else []


def wanted_of(text: str) -> Wanted:
    """The job that `text` is about, as the resolver takes it; see `subject_of`."""
    return subject_of(text)[0]


def subject_of(text: str) -> tuple[Wanted, bool]:
    """The job that `text` is about: what is quoted, what is called a job, else what looks like a name; and whether that
    is surely one. A word that is only unknown may be any word, or a slip of the pen.
    """
    quoted = re.search(r"[\"“「`]([^\"”」`]{1,200})[\"”」`]", text)
    if quoted is not None:
        return Wanted(text=quoted[1]), True
    known = intent_rules()
    found = search_terms(Wanted(text=text), ())
    exact = " ".join(f"{_SAID[kind]} {value}" for kind, value in found.exact if kind in _SAID)
    names = [name for name in found.names if may_be_name(name) and not _no_name(name, known)]
    called = _beside_noun(text, known)
    names = names or called
    marked = [name for name in names if re.search(r"[0-9_./-]", name)]
    sure = bool(exact.strip() or marked or set(called) & set(names))
    return Wanted(text=" ".join([exact, *(marked or names)]).strip(), rank=found.rank), sure


_SAID = {"pid": "pid", "slurm_job": "job", "container": "", "pod_uid": ""}


def _by_rules(said: str, lang: Literal["en", "zh"], known: IntentRules) -> Intent:
    for rule in known.rules:
        slots = rule.match(said)
        if slots is None:
            continue
        if rule.needs_subject and not _has_subject(said, known):
            continue
        if rule.changes and said.rstrip().endswith(("?", "?", "吗", "么")):
            continue
        return Intent(rule.intent, said, lang, rule.changes, slots)
    return Intent("none", said, lang)


def _has_subject(said: str, known: IntentRules) -> bool:
    """Whether it is about a job: a word for one, or the name or number of one."""
    wanted = wanted_of(said)
    return bool(wanted.text) or wanted.rank is not None or known.work.search(said) is not None


def _without_politeness(said: str, known: IntentRules) -> str:
    for pattern in (known.before, known.after):
        while (shorter := pattern.sub("", said).strip()) and shorter != said:
            said = shorter
    return said


def _no_name(name: str, known: IntentRules) -> bool:
    lowered = name.lower()
    if _COUNTED.fullmatch(lowered) or all(part in known.stop for part in re.split(r"[-_/]", lowered)):
        return True
    return (
        lowered in known.stop or known.work.fullmatch(lowered) is not None or known.slow.fullmatch(lowered) is not None
    )


def _beside_noun(text: str, known: IntentRules) -> list[str]:
    """A plain word that is called a job: "job trainer", "作业 trainer"."""
    noun = r"(?:jobs?|runs?|process|pod|container|experiment|called|named|作业|任务|进程|容器|实验|叫|名为)"
    for match in re.finditer(rf"(?<![\w.-]){noun}[ :：]*(?P<job>[A-Za-z][\w.-]*)", text, re.IGNORECASE | re.ASCII):
        if not _no_name(match["job"], known) and not known.look.fullmatch(match["job"].lower()):
            return [match["job"]]
    return []


def _corrected(said: str) -> str:
    return _WORD.sub(lambda match: _nearest(match[0].lower()) or match[0], said)


@cache
def _nearest(word: str) -> str:
    close = difflib.get_close_matches(word, _KNOWN, 1, _TYPO) if len(word) >= _LONG else []
    return close[0] if close else ""
