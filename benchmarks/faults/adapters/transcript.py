"""Score stored transcripts of assistants (docs/benchmark.md).

With ``--results`` every transcript is scored against the case of that run with the same pid and symptom: nothing is
injected. With ``--pid`` and ``--symptom`` it is a diagnoser, which prints the answer of the transcript about them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.faults import report, results
from benchmarks.faults.answer import Answer
from benchmarks.faults.assistants.transcripts import Started, Transcript, TranscriptError, answer_of, read_all
from benchmarks.faults.key import PastCase
from benchmarks.faults.results import Result
from benchmarks.faults.scenario import Scenario, load
from benchmarks.faults.score import score
from whystall.agent_server.interfaces.serialize import inert


def replay(directory: Path, pid: int, symptom: str) -> Answer:
    """Return the answer of the latest transcript about a process and symptom. Raises TranscriptError, OSError."""
    about = [one for _, one in read_all(directory) if (one.start.pid, one.start.symptom) == (pid, symptom)]
    if not about:
        raise TranscriptError(f"no transcript in {directory} is about pid {pid} and this symptom")
    return answer_of(max(about, key=lambda one: one.start.at))


def score_again(
    transcripts: Iterable[tuple[Path, Transcript]], stored: Iterable[Result], scenarios: Mapping[str, Scenario]
) -> list[Result]:
    """Return a result for each transcript whose case is `stored`. Raises TranscriptError if several cases fit."""
    cases = [one for one in stored if one.key is not None and not one.void and one.scenario in scenarios]
    found = []
    for path, transcript in transcripts:
        fitting = [one for one in cases if _fits(transcript.start, one, scenarios[one.scenario])]
        if len({(one.scenario, one.repeat, one.seed, one.commit) for one in fitting}) > 1:
            raise TranscriptError(f"{path.name}: several cases have this pid and symptom")
        if fitting:
            found.append(_scored(transcript, fitting[0], scenarios[fitting[0].scenario]))
    return found


def _fits(start: Started, result: Result, scenario: Scenario) -> bool:
    same = start.symptom in (scenario.symptom.en, scenario.symptom.zh)
    return same and result.key is not None and result.key.pids.get("job") == start.pid


def _scored(transcript: Transcript, result: Result, scenario: Scenario) -> Result:
    assert result.key is not None
    start = transcript.start
    seconds = sum(call.seconds for call in transcript.calls)
    update = {"diagnoser": start.model or start.assistant, "slowdown": None, "seconds": seconds}
    try:
        answer = answer_of(transcript)
    except TranscriptError as error:
        return result.model_copy(update={**update, "failed": str(error), "answer": None, "score": None})
    try:
        scored = score(PastCase(scenario, result.key), answer, result.shares)
    except KeyError as error:
        raise TranscriptError(f"scenario {scenario.id} expects {error}, which it did not in this run") from None
    return result.model_copy(update={**update, "failed": "", "answer": answer, "score": scored})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transcripts", type=Path, required=True, help="their directory")
    parser.add_argument("--results", type=Path, help="the results of a run")
    parser.add_argument("--out", type=Path, help="write the report to this file")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--symptom")
    options = parser.parse_args()
    if (options.results is None) == (options.pid is None or options.symptom is None):
        parser.error("give --results, or --pid and --symptom")
    try:
        if options.results is None:
            print(json.dumps(replay(options.transcripts, options.pid, options.symptom).model_dump(mode="json")))
            return
        scenarios = {one.id: one for one in load()}
        found = score_again(read_all(options.transcripts), results.read(options.results), scenarios)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    if not found:
        sys.exit("no transcript is about a case of these results")
    print("\n".join(inert(line) for line in report.lines(found)))  # a transcript may hold any text
    if options.out:
        options.out.write_text(inert(report.page(found)))


if __name__ == "__main__":
    main()
