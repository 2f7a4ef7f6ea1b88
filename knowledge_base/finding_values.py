"""The values of a finding by name, as a model's placeholders refer to them."""

from __future__ import annotations

from whystall.tools.contract.findings import Finding, Subject

_SUBJECT = tuple(name for name in Subject.model_fields if name != "type")


def names_of(finding: Finding) -> list[str]:
    """Return the names that `value_of` knows: metrics, attributes, and fields of the subject that are set."""
    subject = [name for name in _SUBJECT if getattr(finding.subject, name) is not None]
    return list(dict.fromkeys([*finding.metrics, *(n for n, text in finding.attributes.items() if text), *subject]))


def value_of(finding: Finding, name: str) -> tuple[float | str, str] | None:
    """Return a value and its unit (empty for texts and ids); None if the finding has no such name."""
    if name in finding.metrics:
        return finding.metrics[name], finding.spec.metrics[name]
    text = finding.attributes.get(name) or (getattr(finding.subject, name) if name in _SUBJECT else None)
    return None if text is None else (str(text), "")
