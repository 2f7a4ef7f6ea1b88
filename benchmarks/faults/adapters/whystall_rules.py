"""Run ``whystall diagnose`` and print its answer in the format of docs/benchmark.md."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.faults.adapters import homes
from benchmarks.faults.adapters.whystall_words import advice, evidence

DURATION_S = 8
MAIN = "from whystall.agent_server.interfaces.cli.main import main; main()"
# train (812), worker (813 of 812), viewer (pid 9)
_NUMBER = re.compile(r"\((?:pid )?(\d+)(?: of (\d+))?\)")
_CODE_KEYS = ("code", "function", "chain", "root_code", "stack")
# Attributes that name one object, or one thread. A chain names every thread and object on the way: as a whole it would
# hold almost any fact.
_OBJECT_KEYS = ("object", "root_object", "path", "mount")
_THREAD_KEYS = ("by", "root_by", "object", "root_object", "peer", "holder")
_LIMIT_KEYS = ("limit_of", "cgroup")


def scope(diagnosis: dict[str, Any]) -> dict[str, list[str]]:
    """Return the facts of the answer: its culprit, and its evidence."""
    named: dict[str, list[str]] = {key: [] for key in ("code", "pid", "file", "device", "cgroup", "peer", "wait")}

    def add(dimension: str, *values: Any) -> None:
        named[dimension] += [str(value) for value in values if value not in (None, "")]

    culprit = diagnosis["culprit"] or {}
    for one in (culprit, *culprit.get("actors", [])):
        add("pid", one.get("pid"), one.get("tid"))
        add("file", one.get("path"), one.get("series"))
        add("device", one.get("device"))
        add("cgroup", one.get("cgroup"))
        add("code", one.get("code"))
    cited = cited_findings(diagnosis)
    for finding in diagnosis["findings"]:
        if finding["id"] not in cited:
            continue
        subject, words = finding["subject"], finding["attributes"]
        add("pid", subject.get("pid"), subject.get("tid"))
        add("file", subject.get("path"))
        add("device", subject.get("device"))
        add("cgroup", subject.get("cgroup"))
        add("code", *(words.get(key) for key in _CODE_KEYS))
        add("wait", words.get("wait"), words.get("root_wait"), words.get("mode"))
        add("device", words.get("device"))
        add("cgroup", *(words.get(key) for key in _LIMIT_KEYS))
        add("peer", words.get("peer"))
        for key in _OBJECT_KEYS:
            text = words.get(key, "")
            add("file" if text.startswith("/") else "peer", text)
        for key in _THREAD_KEYS:
            add("pid", *(number for numbers in _NUMBER.findall(words.get(key, "")) for number in numbers))
    return {key: list(dict.fromkeys(values)) for key, values in named.items() if values}


def cited_findings(diagnosis: dict[str, Any]) -> set[str]:
    """Return the ids of the findings that the answer rests on."""
    cited = set(diagnosis["chain"])
    for assessment in diagnosis["assessments"]:
        if assessment["cause"] == diagnosis["cause"]:
            cited |= set(assessment["for"])
    return cited


def causes(diagnosis: dict[str, Any]) -> list[str]:
    """Return the cause of the verdict, then the other supported ones by the time that they explain."""
    supported = [one for one in diagnosis["assessments"] if one["state"] == "supported"]
    supported.sort(key=lambda one: -one["window_pct"])
    return list(dict.fromkeys(filter(None, [diagnosis["cause"], *(one["cause"] for one in supported)])))


def rows(findings: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the account of the window by lines of code and waits, largest first."""
    found = []
    for finding in findings:
        if finding["kind"] not in ("path.running", "path.wait"):
            continue
        words = finding["attributes"]
        extra = {key: words[key] for key in ("mode", "detail", "by", "root_wait", "root_code", "open") if key in words}
        found.append(
            {
                "code": " ".join(dict.fromkeys(filter(None, (words.get("function"), words.get("code"))))),
                "wait": words.get("wait") or "running",
                "pct": finding["metrics"].get("window_pct", 0.0),
                "text": " ".join(f"{key}={value}" for key, value in extra.items()),
            }
        )
    return sorted(found, key=lambda row: -row["pct"])


def answer(diagnosis: dict[str, Any]) -> dict[str, Any]:
    """Return the answer in the common form."""
    victim = diagnosis["victim"] or {}
    remedies = (diagnosis.get("reasoning") or {}).get("remedies", ())
    chain = [finding for finding in diagnosis["findings"] if finding["id"] in diagnosis["chain"]]
    engines = {
        collector["name"]: collector["engine"] for one in diagnosis["coverage"] for collector in one["collectors"]
    }
    return {
        "verdict": diagnosis["verdict"],
        "causes": causes(diagnosis),
        "scope": scope(diagnosis),
        "evidence": evidence(diagnosis["findings"], cited_findings(diagnosis)),
        "advice": advice(diagnosis["cause"], remedies, chain),
        "rows": rows(diagnosis["findings"]),
        "detail": {
            "victim": {key: victim.get(key) for key in ("pid", "tid", "comm", "chosen_by")},
            "culprit": diagnosis["culprit"],
            "explained_pct": diagnosis["explained_pct"],
            "missing": diagnosis["missing"],
            "engines": engines,
            "tools": [step["tools"] for step in diagnosis["steps"]],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pid", required=True)
    parser.add_argument("--symptom", required=True)
    parser.add_argument("--duration", type=float, default=DURATION_S)
    parser.add_argument("--raw", type=Path, help="also write the whole diagnosis to this file")
    options = parser.parse_args()
    command = [sys.executable, "-c", MAIN, "diagnose", "--json", "--pid", options.pid]
    command += ["--symptom", options.symptom, "--duration", str(options.duration)]
    with homes.fresh() as environment:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
    if done.returncode and not done.stdout.strip().startswith("{"):
        sys.exit(done.stderr.strip()[-500:] or done.returncode)
    diagnosis = json.loads(done.stdout)
    if options.raw:
        options.raw.write_text(done.stdout)
    if "verdict" not in diagnosis:
        sys.exit(done.stdout[-500:])
    print(json.dumps(answer(diagnosis)))


if __name__ == "__main__":
    main()
