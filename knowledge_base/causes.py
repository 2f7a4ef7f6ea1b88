"""Causes: loaded from ``catalog/causes/*.yaml``, validated against the kinds of findings, and matched to findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from whystall.knowledge_base.complaints import reports_nothing
from whystall.knowledge_base.data import as_model, catalog, data_fault, read_yaml
from whystall.knowledge_base.models import Cause, Pattern, Remedy, Victim
from whystall.knowledge_base.tokens import concepts, known_concepts
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding
from whystall.tools.contract.kinds import KINDS

_PATTERNS = (
    *("primary", "required", "in_logs", "less", "supporting", "against", "refuted", "same_file", "same_device"),
    *("culprits", "signs", "estimates", "exact", "measured"),
)


@cache
def load_causes() -> dict[str, Cause]:
    """Return every cause by id, in order of id; read once.

    Raises `ToolError` (bad_argument) with file and field if a file is malformed or names an unknown kind, metric or
    attribute.
    """
    return read_causes(catalog("causes"))


def read_causes(directory: Path) -> dict[str, Cause]:
    """Return the causes in `directory`, one per ``ID.yaml``; raises as `load_causes`."""
    found: dict[str, Cause] = {}
    for file in sorted(directory.iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".yaml"):
            continue
        cause = as_model(Cause, read_yaml(file), file)
        if cause.id != file.name.removesuffix(".yaml"):
            raise data_fault(file, f"id: {cause.id!r} is not the file's name")
        _check_patterns(cause, file)
        names = [remedy.id for remedy in cause.remedies]
        if len(set(names)) != len(names):
            raise data_fault(file, "remedies: an id is used twice")
        found[cause.id] = cause
    for cause in found.values():
        if unknown := sorted(set(cause.rivals) - found.keys()):
            raise data_fault(directory / f"{cause.id}.yaml", f"rivals: unknown cause {unknown[0]!r}")
    return found


def considered_for(causes: Mapping[str, Cause], symptom: str, *, any_symptom: bool = False) -> dict[str, Cause]:
    """Return those of `causes` worth examining for `symptom` (any words, either language), with the primary patterns
    that count for it.

    `any_symptom`: also those of other symptoms. Without a symptom, or if it only asks whether all is well, ordinary
    causes are left out in any case.
    """
    named = concepts(symptom)
    reported = not reports_nothing(symptom)

    def fits(symptoms: list[list[str]]) -> bool:
        return not symptoms or any(named.issuperset(words) for words in symptoms)

    return {
        id: cause.model_copy(update={"primary": [pattern for pattern in cause.primary if fits(pattern.symptoms)]})
        for id, cause in causes.items()
        if (reported or not cause.ordinary) and (any_symptom or fits(cause.symptoms))
    }


def check_cause(id: str) -> None:
    """Raise `ToolError` (bad_argument), with the valid ids, if there is no cause `id`."""
    known = load_causes()
    if id not in known:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"unknown cause {id!r}", f"valid: {', '.join(sorted(known))}")


def matches(pattern: Pattern, finding: Finding, victim: Victim | None) -> bool:
    """Return whether `finding` meets every condition of `pattern`.

    With `pattern.victim`, the finding must be about `victim`: the same rank or thread if it names one, else the same
    process, else anything (a device, the host, a job). Without a victim no finding matches.
    """
    return finding.polarity is pattern.polarity and measured(pattern, finding, victim)


def measured(pattern: Pattern, finding: Finding, victim: Victim | None) -> bool:
    """As `matches`, but for any polarity: return whether it was measured at all."""
    if pattern.victim and not (victim is not None and about(finding, victim)):
        return False
    return _meets(pattern, finding)


def _meets(pattern: Pattern, finding: Finding) -> bool:
    """Return whether `finding`, of whatever thread, has the kind, numbers and attributes of `pattern`."""
    return (
        finding.kind == pattern.kind
        and all((value := metric(finding, name)) is not None and value >= low for name, low in pattern.min.items())
        and all((value := metric(finding, name)) is not None and value <= high for name, high in pattern.max.items())
        and all(_one_of(finding, name, words) for name, words in pattern.attributes.items())
        and not any(_one_of(finding, name, words) for name, words in pattern.unless.items())
    )


def _one_of(finding: Finding, name: str, words: Iterable[str]) -> bool:
    return any(fnmatchcase(finding.attributes.get(name, ""), word) for word in words)


def about(finding: Finding, victim: Victim) -> bool:
    """Return whether `finding` is about `victim`'s rank, thread or process, or names none.

    A finding about a thread that another one waits for (``waiter``: ``comm (tid)``) is about the waiter.
    """
    subject = finding.subject
    if waiter := finding.attributes.get("waiter"):
        return waiter.endswith(f"({victim.tid})")
    if subject.rank is not None:
        return subject.rank == victim.rank
    if subject.tid is not None:
        return subject.tid == victim.tid
    return subject.pid is None or subject.pid == victim.pid


def device_of(finding: Finding) -> str | None:
    """Return the disk that `finding` is about, or on which its file is; None if unknown."""
    return finding.subject.device or finding.attributes.get("device")


def metric(finding: Finding, name: str) -> float | None:
    """Return the metric `name` of `finding`, or the ratio ``a/b`` of two; None if it is missing."""
    over, slash, under = name.partition("/")
    value = finding.metrics.get(over)
    if not slash or value is None:
        return value
    divisor = finding.metrics.get(under)
    return value / divisor if divisor else None


def ranked_remedies(cause: Cause, evidence: Sequence[Finding] = ()) -> list[Remedy]:
    """Return the remedies of `cause`, best first: those that suit the `evidence`, then by gain, low effort, and order
    in the file; those meant for other evidence come last. Without evidence, what it suits does not count."""

    def order(remedy: Remedy) -> tuple[bool, bool, int, int]:
        meant = bool(remedy.suits) and bool(evidence)
        suits = meant and any(
            finding.polarity is pattern.polarity and _meets(pattern, finding)
            for pattern in remedy.suits
            for finding in evidence
        )
        return meant and not suits, not suits, -remedy.gain, remedy.effort

    return sorted(cause.remedies, key=order)


def _check_patterns(cause: Cause, file: Path) -> None:
    groups = {group: getattr(cause, group) for group in _PATTERNS}
    groups |= {f"remedies.{remedy.id}": remedy.suits for remedy in cause.remedies}
    for group, patterns in groups.items():
        for index, pattern in enumerate(patterns):
            where = f"{group}.{index}"
            spec = KINDS.get(pattern.kind)
            if spec is None:
                raise data_fault(file, f"{where}.kind: unknown finding kind {pattern.kind!r}")
            for bounds in ("min", "max"):
                for name in getattr(pattern, bounds):
                    if any(part not in spec.metrics for part in name.split("/")) or name.count("/") > 1:
                        raise data_fault(file, f"{where}.{bounds}: {pattern.kind} has no metric {name!r}")
            for name in (*pattern.attributes, *pattern.unless):
                if name not in spec.attributes:
                    raise data_fault(file, f"{where}.attributes: {pattern.kind} has no attribute {name!r}")
    named = [(f"primary.{index}.", pattern.symptoms) for index, pattern in enumerate(cause.primary)]
    for where, symptoms in (("", cause.symptoms), *named):
        for index, words in enumerate(symptoms):
            if unknown := sorted(set(words) - known_concepts()):
                raise data_fault(file, f"{where}symptoms.{index}: the glossary has no concept {unknown[0]!r}")
    if not any(KINDS[pattern.kind].share for pattern in cause.primary):
        raise data_fault(
            file, "primary: no kind here carries a share of the window, so the cause could explain nothing"
        )
