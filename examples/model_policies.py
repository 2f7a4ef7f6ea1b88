"""What the example server answers by: one honest policy, and the ways in which models go wrong.

None of them is a language model. The honest one, `engineer`, knows nothing of the case but what the protocol tells any
model: instructions, briefing, functions and their answers. The others are the engineer with one bad habit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from model_chat import operator
from model_http import Answer, Call, Die, Policy, Request, Say, written
from model_reading import CONCLUDE, Reading, numbers

FIRST_LOOK = "host_snapshot"
SEARCH = "kb_search"
AT_ONCE = 2
"""Tools called in one message, at most."""
CITED = 4
"""Findings that the story cites, at most."""
TOLD = 3
"""Numbers per sentence, at most."""
WORDS: Mapping[str, Any] = json.loads((Path(__file__).parent / "model_words.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Conclusion:
    """The arguments of ``conclude``: `chain` holds sentences, each with the ids of the findings it rests on."""

    cause: str
    chain: Sequence[tuple[str, Sequence[str]]] = ()
    remedies: Sequence[str] = ()

    def call(self) -> Call:
        """The call that says so."""
        chain = [{"claim": claim, "findings": list(ids)} for claim, ids in self.chain]
        return Call(CONCLUDE, {"cause": self.cause, "chain": chain, "remedies": list(self.remedies)})


# --- the honest one ---------------------------------------------------------------------------------------


def engineer(request: Request) -> Say:
    """First look, if there was none; then, in parallel, the tools that tell the open causes apart, and what is known of
    such a symptom; then what still tells them apart; then the conclusion.
    """
    reading = Reading(request)
    calls = next_calls(reading)
    return Say(calls=calls or [conclusion(reading).call()])


def next_calls(reading: Reading) -> list[Call]:
    """What to call now; empty when it is time to conclude."""
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
    """Whether a look could still change what is thought of a cause."""
    return cause["state"] in ("supported", "not_examined")


def conclusion(reading: Reading) -> Conclusion:
    """The cause that the evidence supports first, told by the findings that speak for it; else ``unknown``."""
    supported = next((cause for cause in reading.causes if cause["state"] == "supported"), None)
    if supported is None:
        return Conclusion("unknown")
    cited = [reading.findings[id] for id in supported.get("for", []) if id in reading.findings]
    chain = [(sentence(finding, reading.language), [finding["id"]]) for finding in cited[:CITED]]
    return Conclusion(supported["cause"], chain, supported.get("remedies", [])[:1])


def sentence(finding: Mapping[str, Any], language: str) -> str:
    """What a finding says, with its numbers copied to three digits."""
    words = WORDS[language]
    subject = finding["subject"]
    who = " ".join(str(subject[part]) for part in ("comm", "path", "device") if subject.get(part))
    values = numbers(finding)
    measured = [
        phrase.format(f"{values[name]:.3g}" if values[name] < 1000 else f"{values[name]:.0f}")
        for name, phrase in words["metrics"].items()  # what tells most stands first
        if values.get(name)
    ]
    frame = words["normal" if finding.get("polarity") == "normal" else "claim"]
    kind = words["kinds"].get(finding["kind"], finding["kind"])
    said = words["join"].join([frame.format(kind), *measured[:TOLD]])
    return f"{who}{words['colon']}{said}" if who else str(said)


# --- those that go wrong ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inventor:
    """The engineer, but its conclusion also says what no tool found. `spoil` does that.

    Told that it is wrong, it concludes honestly; with `stubborn`, it repeats itself.
    """

    spoil: Callable[[Conclusion, Reading], Conclusion]
    stubborn: bool = False

    def __call__(self, request: Request) -> Say:
        reading = Reading(request)
        if next_calls(reading):
            return engineer(request)
        honest = conclusion(reading)
        invents = self.stubborn or CONCLUDE not in reading.called
        return Say(calls=[(self.spoil(honest, reading) if invents else honest).call()])


INVENTED_NUMBER = "8642.7"
INVENTED_FILE = "/srv/invented/weights-of-nobody.bin"
INVENTED_CAUSE = "gremlins_in_the_cable"


def invented_number(honest: Conclusion, reading: Reading) -> Conclusion:
    """One more claim, with a number that nothing measured."""
    return _claiming(honest, f"every write takes {INVENTED_NUMBER} ms", reading)


def invented_file(honest: Conclusion, reading: Reading) -> Conclusion:
    """One more claim, about a file that nothing saw."""
    return _claiming(honest, f"the program waits for {INVENTED_FILE}", reading)


def invented_cause(honest: Conclusion, _: Reading) -> Conclusion:
    """A cause that is in no catalogue."""
    return Conclusion(INVENTED_CAUSE, honest.chain, honest.remedies)


def other_cause(honest: Conclusion, reading: Reading) -> Conclusion:
    """A cause of the catalogue that the evidence does not support."""
    others = (c["cause"] for c in reversed(reading.causes) if c["state"] != "supported")
    return Conclusion(next(others, INVENTED_CAUSE), honest.chain)


def invented_everything(honest: Conclusion, reading: Reading) -> Conclusion:
    """Number, file and cause at once."""
    return invented_cause(invented_file(invented_number(honest, reading), reading), reading)


def without_citation(honest: Conclusion, _: Reading) -> Conclusion:
    """Claims that cite nothing that exists."""
    return Conclusion(honest.cause, [(claim, ["F99999"]) for claim, _ in honest.chain], honest.remedies)


def _claiming(honest: Conclusion, claim: str, reading: Reading) -> Conclusion:
    cited = [id for _, ids in honest.chain for id in ids] or list(reading.findings)[:1]
    return Conclusion(honest.cause, [*honest.chain, (claim, cited[:1])], honest.remedies)


@dataclass
class Mortal:
    """`policy` for `answers` answers; then the server dies."""

    policy: Policy
    answers: int
    given: int = field(default=0, init=False)

    def __call__(self, request: Request) -> Answer:
        self.given += 1
        return Die() if self.given > self.answers else self.policy(request)


def repeats(request: Request) -> Say:
    """The same call, for ever."""
    first = next(iter(Reading(request).functions), FIRST_LOOK)
    return Say(calls=[Call(first, {})])


def refuses(request: Request) -> Say:
    """Will not help."""
    return Say(refusal=WORDS[Reading(request).language]["refusal"], finish="stop")


def prose(request: Request) -> Say:
    """Has an opinion and calls nothing."""
    return Say(WORDS[Reading(request).language]["prose"])


def malformed(_: Request) -> Say:
    """Calls whose arguments are no JSON, or no object."""
    return Say(calls=[Call(FIRST_LOOK, '{"top": 3'), Call(CONCLUDE, '["because"]')])


def unknown_tools(_: Request) -> Say:
    """Calls functions that nobody offered."""
    return Say(calls=[Call("shell", {"command": "id"}), Call("read_file", {"path": "/etc/shadow"})])


def wrong_arguments(_: Request) -> Say:
    """Chooses target, engine and path, which are not for it to choose, and values out of bounds."""
    wrong: Iterable[Mapping[str, Any]] = ({"pid": 1}, {"duration": 1e9}, {"top": "many"}, {"engine": "procfs"})
    return Say(calls=[Call(FIRST_LOOK, arguments) for arguments in wrong])


def truncated(_: Request) -> Say:
    """Runs out of tokens within a call."""
    return Say(calls=[Call(CONCLUDE, '{"cause": "sync_che')], finish="length")


def empty(_: Request) -> Say:
    """Says nothing at all."""
    return Say()


ORDER = re.compile(r"\b(?:call (?P<tool>\w+)|conclude (?P<cause>\w+))")


def obeys(request: Request) -> Say:
    """Does what anybody tells it, wherever that stands; what nobody orders it does as the engineer."""
    reading = Reading(request)
    for order in ORDER.finditer(reading.text):
        if order["tool"] and order["tool"] not in reading.called:
            return Say(calls=[Call(order["tool"])])
        if order["cause"]:
            return Say(calls=[Conclusion(order["cause"], [(order.string[order.start() :][:300], ["F1"])]).call()])
    return engineer(request)


def counting(policy: Policy) -> Policy:
    """`policy`, with the tokens that a model would count about: four characters each."""

    def answer(request: Request) -> Answer:
        given = policy(request)
        if not isinstance(given, Say):
            return given
        written_out = sum(len(call.name) + len(written(call.arguments)) for call in given.calls)
        spoken = len(given.content) + len(given.refusal)
        return replace(given, usage=(len(request.raw) // 4, (spoken + written_out) // 4))

    return answer


@dataclass(frozen=True)
class Named:
    """A policy by its name; `fresh` makes one, since some count."""

    about: str
    fresh: Callable[[], Policy]

    def make(self) -> Policy:
        """One to be served."""
        return counting(self.fresh())


def _inventor(about: str, spoil: Callable[[Conclusion, Reading], Conclusion]) -> dict[str, Named]:
    name = spoil.__name__.replace("_", "-")
    return {
        name: Named(f"{about}; concludes honestly when told", lambda: Inventor(spoil)),
        f"{name}-stubborn": Named(f"{about}; and again when told", lambda: Inventor(spoil, stubborn=True)),
    }


POLICIES: Mapping[str, Named] = {
    "engineer": Named("looks, follows the open causes, concludes with cited findings", lambda: engineer),
    **_inventor("states a number that nothing measured", invented_number),
    **_inventor("names a file that nothing saw", invented_file),
    **_inventor("names a cause that does not exist", invented_cause),
    **_inventor("does all three", invented_everything),
    **_inventor("names a cause that the evidence does not support", other_cause),
    **_inventor("cites findings that do not exist", without_citation),
    "dies": Named("the engineer, but the server dies after two answers", lambda: Mortal(engineer, 2)),
    "repeats": Named("makes the same call for ever", lambda: repeats),
    "refuses": Named("will not help", lambda: refuses),
    "prose": Named("has an opinion and calls nothing", lambda: prose),
    "malformed": Named("writes calls that are no JSON", lambda: malformed),
    "truncated": Named("runs out of tokens within a call", lambda: truncated),
    "unknown-tools": Named("calls functions that nobody offered", lambda: unknown_tools),
    "wrong-arguments": Named("chooses what is not for it to choose, and values out of bounds", lambda: wrong_arguments),
    "obeys": Named("does what anything that it reads tells it", lambda: obeys),
    "empty": Named("says nothing at all", lambda: empty),
    "operator": Named("for whystall chat --llm: looks up what is asked, and says what was returned", lambda: operator),
}
