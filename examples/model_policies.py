"""Rules by which the example server answers: one correct policy, and others that fail as models do.

The correct one, `engineer`, uses only what the protocol gives any model: instructions, briefing, functions and their
answers. The others are the engineer with one fault each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from model_chat import operator
from model_http import Answer, Call, Die, Policy, Request, Turn, written
from model_reading import CONCLUDE, Reading, numbers

FIRST_LOOK = "host_snapshot"
SEARCH = "kb_search"
AT_ONCE = 2
"""Most tools called in one message."""
CITED = 4
"""Most findings cited in a conclusion."""
NUMBERS = 3
"""Most numbers in a sentence."""
ORIGINS = ("disk.neighbour", "cpu.neighbour", "sched.real_time", "cpu.outweighed", "cache.streaming")
"""Kinds of findings about what others do: they are no symptoms."""
WORDS: Mapping[str, Any] = json.loads((Path(__file__).parent / "model_words.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Conclusion:
    """The arguments of ``conclude``. `claims`: relation, finding, and finding or cause; `more`: further arguments."""

    cause: str
    claims: Sequence[tuple[str, str, str]] = ()
    remedies: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    def call(self) -> Call:
        """Return the call of ``conclude``."""
        claims = [{"relation": relation, "subject": subject, "object": of} for relation, subject, of in self.claims]
        return Call(CONCLUDE, {"cause": self.cause, "claims": claims, "remedies": list(self.remedies), **self.more})

    def also(self, claim: tuple[str, str, str], narrative: str) -> Conclusion:
        """Return it with one more claim, and `narrative` instead of its own."""
        return replace(self, claims=[*self.claims, claim], more={**self.more, "narrative": narrative})


# --- the correct policy ---------------------------------------------------------------------------------------


def engineer(request: Request) -> Turn:
    """Call the overview tool first; then, in parallel, tools that distinguish the open causes, and the search for the
    symptom; then tools still suggested; then conclude.
    """
    reading = Reading(request)
    calls = next_calls(reading)
    return Turn(calls=calls or [conclusion(reading).call()])


def next_calls(reading: Reading) -> list[Call]:
    """Return the next calls; empty if it is time to conclude."""
    if CONCLUDE in reading.called:
        return []
    left = [name for name in reading.functions if name not in reading.called]
    if FIRST_LOOK in left and not reading.findings:
        return [Call(FIRST_LOOK)]
    wanted = [tool for cause in reading.causes if is_open(cause) for tool in cause.get("tools", [])]
    calls = [Call(tool) for tool in dict.fromkeys([*wanted, *reading.suggested]) if tool in left][:AT_ONCE]
    if calls and SEARCH in left and reading.symptom:
        calls.append(Call(SEARCH, {"query": reading.symptom}))
    return calls


def is_open(cause: Mapping[str, Any]) -> bool:
    """Return whether another tool could still change the state of a cause."""
    return cause["state"] in ("supported", "not_examined")


def conclusion(reading: Reading) -> Conclusion:
    """Return the cause of the verdict so far, with what its findings are to it, and what rules others out; ``unknown``
    if there is none.

    The causes are in the order of the time that they explain, but a more specific one may lead.
    """
    causes = [cause for cause in reading.causes if cause["state"] == "supported"]
    supported = next((cause for cause in causes if reading.leading in ("", cause["cause"])), None)
    if supported is None:
        return Conclusion("unknown")
    cited = [reading.findings[id] for id in supported.get("for", []) if id in reading.findings][:CITED]
    claims = [
        ("causes" if finding["kind"].startswith(ORIGINS) else "is_symptom_of", finding["id"], supported["cause"])
        for finding in cited
    ]
    claims += [("rules_out", by, other) for other, by in reading.excluded.items() if by in reading.findings][:CITED]
    text = ". ".join(sentence(finding, reading.language) for finding in cited)
    return Conclusion(supported["cause"], claims, supported.get("remedies", [])[:1], {"narrative": text})


def sentence(finding: Mapping[str, Any], language: str) -> str:
    """Return a sentence about a finding, with placeholders for its names and numbers."""
    words = WORDS[language]
    id, subject = finding["id"], finding["subject"]
    about = " ".join(f"{{{id}.{part}}}" for part in ("comm", "path", "device") if subject.get(part))
    values = numbers(finding)
    measured = [
        phrase.format(f"{{{id}.{name}}}")
        for name, phrase in words["metrics"].items()  # most significant first
        if values.get(name)
    ]
    frame = words["normal" if finding.get("polarity") == "normal" else "claim"]
    kind = words["kinds"].get(finding["kind"], finding["kind"])
    text = words["join"].join([frame.format(kind), *measured[:NUMBERS]])
    return f"{about}{words['colon']}{text}" if about else str(text)


# --- those that go wrong ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inventor:
    """The engineer, but `spoil` adds invented facts to its conclusion.

    When corrected, it concludes without them; if `stubborn`, it repeats them.
    """

    spoil: Callable[[Conclusion, Reading], Conclusion]
    stubborn: bool = False

    def __call__(self, request: Request) -> Turn:
        reading = Reading(request)
        if next_calls(reading):
            return engineer(request)
        honest = conclusion(reading)
        invents = self.stubborn or CONCLUDE not in reading.called
        return Turn(calls=[(self.spoil(honest, reading) if invents else honest).call()])


INVENTED_NUMBER = "8642.7"
INVENTED_FILE = "/srv/invented/weights-of-nobody.bin"
INVENTED_CAUSE = "gremlins_in_the_cable"


def invented_number(honest: Conclusion, reading: Reading) -> Conclusion:
    """Claim more time than was measured, and write a number into the narrative."""
    about = next(iter(reading.findings), "F1")
    claim = {"relation": "explains_share_of", "subject": about, "object": honest.cause, "share_pct": 100}
    made = honest.call().arguments
    claims = [*made["claims"], claim] if isinstance(made, Mapping) else [claim]
    text = f"{honest.more.get('narrative', '')}. Every write takes {INVENTED_NUMBER} ms"
    return replace(honest, more={**honest.more, "narrative": text, "claims": claims})


def invented_file(honest: Conclusion, reading: Reading) -> Conclusion:
    """Claim that a wait names what it does not, and name a file that was not observed."""
    first, second = [*reading.findings, "F1", "F2"][:2]
    return honest.also(("waits_for", first, second), f"the program waits for {INVENTED_FILE}")


def invented_cause(honest: Conclusion, _: Reading) -> Conclusion:
    """Conclude a cause that is not in the catalogue."""
    return replace(honest, cause=INVENTED_CAUSE)


def other_cause(honest: Conclusion, reading: Reading) -> Conclusion:
    """Conclude a cause of the catalogue that the evidence does not support."""
    others = (c["cause"] for c in reversed(reading.causes) if c["state"] != "supported")
    return Conclusion(next(others, INVENTED_CAUSE), honest.claims)


def invented_everything(honest: Conclusion, reading: Reading) -> Conclusion:
    """Invent number, file and cause."""
    return invented_cause(invented_number(invented_file(honest, reading), reading), reading)


def without_citation(honest: Conclusion, _: Reading) -> Conclusion:
    """Claim something of findings that do not exist."""
    return replace(honest, claims=[(relation, "F99999", of) for relation, _, of in honest.claims])


def swapped(honest: Conclusion, _: Reading) -> Conclusion:
    """Claim that the symptoms are why the cause acts on others: subject and object exchanged."""
    ids = [subject for relation, subject, _ in honest.claims if relation == "is_symptom_of"]
    turned = [("causes", after, before) for before, after in pairwise(ids)]
    return replace(honest, claims=[*honest.claims, *turned])


def own_hypothesis(honest: Conclusion, reading: Reading) -> Conclusion:
    """Name a cause outside of the catalogue in its own words, with a call that would test it."""
    check = next((name for name in reading.functions if name not in (CONCLUDE, SEARCH)), FIRST_LOOK)
    more = {**honest.more, "hypothesis": INVENTED_CAUSE.replace("_", " "), "checks": [{"tool": check}]}
    return replace(honest, cause="other", remedies=[], more=more)


@dataclass
class DiesAfter:
    """`policy` for `answers` answers; then the server dies."""

    policy: Policy
    answers: int
    given: int = field(default=0, init=False)

    def __call__(self, request: Request) -> Answer:
        self.given += 1
        return Die() if self.given > self.answers else self.policy(request)


def repeats(request: Request) -> Turn:
    """Repeat the same call for ever."""
    first = next(iter(Reading(request).functions), FIRST_LOOK)
    return Turn(calls=[Call(first, {})])


def refuses(request: Request) -> Turn:
    """Refuse to help."""
    return Turn(refusal=WORDS[Reading(request).language]["refusal"], finish="stop")


def prose(request: Request) -> Turn:
    """Answer in prose without a call."""
    return Turn(WORDS[Reading(request).language]["prose"])


def malformed(_: Request) -> Turn:
    """Call with arguments that are not JSON, or not an object."""
    return Turn(calls=[Call(FIRST_LOOK, '{"top": 3'), Call(CONCLUDE, '["because"]')])


def unknown_tools(_: Request) -> Turn:
    """Call functions that were not offered."""
    return Turn(calls=[Call("shell", {"command": "id"}), Call("read_file", {"path": "/etc/shadow"})])


def wrong_arguments(_: Request) -> Turn:
    """Choose target, engine and path, which a model may not, and values out of bounds."""
    wrong: Iterable[Mapping[str, Any]] = ({"pid": 1}, {"duration": 1e9}, {"top": "many"}, {"engine": "procfs"})
    return Turn(calls=[Call(FIRST_LOOK, arguments) for arguments in wrong])


def truncated(_: Request) -> Turn:
    """Run out of tokens within a call."""
    return Turn(calls=[Call(CONCLUDE, '{"cause": "sync_che')], finish="length")


def empty(_: Request) -> Turn:
    """Return an empty answer."""
    return Turn()


ORDER = re.compile(r"\b(?:call (?P<tool>\w+)|conclude (?P<cause>\w+))")


def obeys(request: Request) -> Turn:
    """Follow any order in the text, including in data; without one, act as the engineer."""
    reading = Reading(request)
    for order in ORDER.finditer(reading.text):
        if order["tool"] and order["tool"] not in reading.called:
            return Turn(calls=[Call(order["tool"])])
        if order["cause"]:
            return Turn(calls=[Conclusion(order["cause"], [("causes", "F1", order["cause"])]).call()])
    return engineer(request)


def counting(policy: Policy) -> Policy:
    """Return `policy` with estimated token counts, at four characters each."""

    def answer(request: Request) -> Answer:
        given = policy(request)
        if not isinstance(given, Turn):
            return given
        written_out = sum(len(call.name) + len(written(call.arguments)) for call in given.calls)
        spoken = len(given.content) + len(given.refusal)
        return replace(given, usage=(len(request.raw) // 4, (spoken + written_out) // 4))

    return answer


@dataclass(frozen=True)
class Named:
    """A policy with its description; `fresh` makes one, since some have state."""

    about: str
    fresh: Callable[[], Policy]

    def make(self) -> Policy:
        """Return a new policy to serve."""
        return counting(self.fresh())


def _inventor(about: str, spoil: Callable[[Conclusion, Reading], Conclusion]) -> dict[str, Named]:
    name = spoil.__name__.replace("_", "-")
    return {
        name: Named(f"{about}; concludes without it when corrected", lambda: Inventor(spoil)),
        f"{name}-stubborn": Named(f"{about}; and again when corrected", lambda: Inventor(spoil, stubborn=True)),
    }


POLICIES: Mapping[str, Named] = {
    "engineer": Named("observes, follows the open causes, concludes with cited findings", lambda: engineer),
    **_inventor("claims a share, and writes a number, that was not measured", invented_number),
    **_inventor("claims a wait, and names a file, that was not observed", invented_file),
    **_inventor("names a cause that does not exist", invented_cause),
    **_inventor("does all three", invented_everything),
    **_inventor("names a cause that the evidence does not support", other_cause),
    **_inventor("cites findings that do not exist", without_citation),
    **_inventor("takes symptoms for causes of each other", swapped),
    "own-hypothesis": Named(
        "concludes a hypothesis of its own, and how to test it", lambda: Inventor(own_hypothesis, stubborn=True)
    ),
    "dies": Named("the engineer, but the server dies after two answers", lambda: DiesAfter(engineer, 2)),
    "repeats": Named("repeats the same call for ever", lambda: repeats),
    "refuses": Named("refuses to help", lambda: refuses),
    "prose": Named("answers in prose without a call", lambda: prose),
    "malformed": Named("writes calls that are not JSON", lambda: malformed),
    "truncated": Named("runs out of tokens within a call", lambda: truncated),
    "unknown-tools": Named("calls functions that were not offered", lambda: unknown_tools),
    "wrong-arguments": Named("chooses what a model may not choose, and values out of bounds", lambda: wrong_arguments),
    "obeys": Named("follows any order in what it reads", lambda: obeys),
    "empty": Named("returns an empty answer", lambda: empty),
    "operator": Named("for whystall chat --llm: looks up what is asked, and reports the result", lambda: operator),
}
