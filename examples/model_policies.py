"""Rules by which the example server answers: one correct policy, and others that fail as models do.

The correct one, `engineer`, uses only what the protocol gives any model: instructions, briefing, functions and their
answers. The others are the engineer with one fault each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
WORDS: Mapping[str, Any] = json.loads((Path(__file__).parent / "model_words.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Conclusion:
    """The arguments of ``conclude``. `chain`: sentences, each with the ids of the findings it cites."""

    cause: str
    chain: Sequence[tuple[str, Sequence[str]]] = ()
    remedies: Sequence[str] = ()

    def call(self) -> Call:
        """Return the call of ``conclude``."""
        chain = [{"claim": claim, "findings": list(ids)} for claim, ids in self.chain]
        return Call(CONCLUDE, {"cause": self.cause, "chain": chain, "remedies": list(self.remedies)})


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
    """Return the cause of the verdict so far, with sentences about its findings; ``unknown`` if there is none.

    The causes are in the order of the time that they explain, but a more specific one may lead.
    """
    causes = [cause for cause in reading.causes if cause["state"] == "supported"]
    supported = next((cause for cause in causes if reading.leading in ("", cause["cause"])), None)
    if supported is None:
        return Conclusion("unknown")
    cited = [reading.findings[id] for id in supported.get("for", []) if id in reading.findings]
    chain = [(sentence(finding, reading.language), [finding["id"]]) for finding in cited[:CITED]]
    return Conclusion(supported["cause"], chain, supported.get("remedies", [])[:1])


def sentence(finding: Mapping[str, Any], language: str) -> str:
    """Return a sentence about a finding, with its numbers to three digits."""
    words = WORDS[language]
    subject = finding["subject"]
    about = " ".join(str(subject[part]) for part in ("comm", "path", "device") if subject.get(part))
    values = numbers(finding)
    measured = [
        phrase.format(f"{values[name]:.3g}" if values[name] < 1000 else f"{values[name]:.0f}")
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
    """Add a claim with a number that was not measured."""
    return _claiming(honest, f"every write takes {INVENTED_NUMBER} ms", reading)


def invented_file(honest: Conclusion, reading: Reading) -> Conclusion:
    """Add a claim about a file that was not observed."""
    return _claiming(honest, f"the program waits for {INVENTED_FILE}", reading)


def invented_cause(honest: Conclusion, _: Reading) -> Conclusion:
    """Conclude a cause that is not in the catalogue."""
    return Conclusion(INVENTED_CAUSE, honest.chain, honest.remedies)


def other_cause(honest: Conclusion, reading: Reading) -> Conclusion:
    """Conclude a cause of the catalogue that the evidence does not support."""
    others = (c["cause"] for c in reversed(reading.causes) if c["state"] != "supported")
    return Conclusion(next(others, INVENTED_CAUSE), honest.chain)


def invented_everything(honest: Conclusion, reading: Reading) -> Conclusion:
    """Invent number, file and cause."""
    return invented_cause(invented_file(invented_number(honest, reading), reading), reading)


def without_citation(honest: Conclusion, _: Reading) -> Conclusion:
    """Cite findings that do not exist."""
    return Conclusion(honest.cause, [(claim, ["F99999"]) for claim, _ in honest.chain], honest.remedies)


def _claiming(honest: Conclusion, claim: str, reading: Reading) -> Conclusion:
    cited = [id for _, ids in honest.chain for id in ids] or list(reading.findings)[:1]
    return Conclusion(honest.cause, [*honest.chain, (claim, cited[:1])], honest.remedies)


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
            return Turn(calls=[Conclusion(order["cause"], [(order.string[order.start() :][:300], ["F1"])]).call()])
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
    **_inventor("states a number that was not measured", invented_number),
    **_inventor("names a file that was not observed", invented_file),
    **_inventor("names a cause that does not exist", invented_cause),
    **_inventor("does all three", invented_everything),
    **_inventor("names a cause that the evidence does not support", other_cause),
    **_inventor("cites findings that do not exist", without_citation),
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
