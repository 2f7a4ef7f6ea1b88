"""Write docs/conformance.md: what each scenario of the conformance runner gives.

usage: PYTHONPATH=tests python -m conformance.report    runs them all, takes about a minute
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import yaml
from conformance import scenarios
from conformance.scenarios import Outcome, Requirements

PAGE = scenarios.ROOT / "docs/conformance.md"
KNOWN: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("known.yaml").read_text())
_HEAD = Path(__file__).with_name("page.md")


def result(outcome: Outcome) -> str:
    """Return the result of a scenario in a word; a warning is no failure."""
    if outcome.failed:
        return "failed"
    return "passed" if outcome.passed or outcome.warned else "not run"


def remark(version: str, name: str, outcome: Outcome) -> str:
    """Return what is known of a scenario."""
    parts = []
    if outcome.failed:
        parts.append(_failing(version).get(name, {}).get("why", "not explained"))
    if name in KNOWN["fixture_only"]:
        parts.append(f"Fixture only. {KNOWN['fixture_only'][name]}")
    if name in KNOWN["remarks"]:
        parts.append(KNOWN["remarks"][name])
    return " ".join(part.strip() for part in parts)


def _failing(version: str) -> dict[str, Any]:
    found: dict[str, Any] = KNOWN["failing"].get(version, {})
    return found


def page(outcomes: Mapping[str, Mapping[str, Outcome]], required: Mapping[str, Requirements]) -> str:
    """Return the page, in Markdown."""
    totals = "\n".join(_totals(version, outcomes[version], required[version]) for version in outcomes)
    failed = [
        f"* {version}, `{name}` (`{'`, `'.join(found[name].failed)}`): {remark(version, name, found[name])}"
        for version, found in outcomes.items()
        for name in required[version].scenarios
        if found[name].failed
    ]
    failures = "\n".join(["What fails, and why:", "", *failed]) if failed else "Nothing fails."
    runner = scenarios.pinned()["@modelcontextprotocol/conformance"]
    sdk = ".".join(installed("mcp").split(".")[:2])
    text = _HEAD.read_text().format(runner=runner, sdk=sdk, totals=totals, failures=failures)
    for version, found in outcomes.items():
        text += f"\n## {version}\n\n| scenario | scored | result | checks | remark |\n|---|---|---|---|---|\n"
        for name in required[version].scenarios:
            one = found[name]
            scored = "yes" if name in required[version].scored else f"no ({required[version].unscored[name]})"
            checks = f"{one.passed}/{one.passed + len(one.failed) + len(one.warned)}"
            text += f"| `{name}` | {scored} | {result(one)} | {checks} | {remark(version, name, one)} |\n"
    return text


def _totals(version: str, found: Mapping[str, Outcome], required: Requirements) -> str:
    def count(names: Mapping[str, str] | tuple[str, ...], wanted: str) -> int:
        return sum(result(found[name]) == wanted for name in names)

    scored = [len(required.scored), count(required.scored, "passed"), count(required.scored, "failed")]
    others = [len(required.unscored), *(count(required.unscored, one) for one in ("passed", "failed", "not run"))]
    return f"| {version} | {' | '.join(map(str, [*scored, *others]))} |"


def main() -> None:
    """Run the scenarios and write the page."""
    outcomes = scenarios.run_all()
    PAGE.write_text(page(outcomes, {version: scenarios.requirements(version) for version in outcomes}))


if __name__ == "__main__":
    main()
