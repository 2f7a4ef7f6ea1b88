"""The rules for crash reports of the kernel, from `kernel_rules.yaml`, `frames.yaml` and `classes.yaml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

Source = Literal["line", "rip", "trace", "acquired", "below", "interrupted"]
_FUNC = (
    r"(?:\[?<?(?:0x)?[0-9a-f]{6,16}>?\]?\s+)*(?P<func>(?:<[^>\n]+>(?:::[\w<>{}#]+)+|[a-zA-Z_$][\w.$]*))"
    r"\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?"
)
_FUNC2 = _FUNC.replace("(?P<func>", "(?P<func2>")
_LOADER: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REACH = 12
"""Lines within which `later` must follow, unless a form states another number."""


@dataclass(frozen=True)
class StackRule:
    """Where the guilty function of a report is: see `kernel_rules.yaml`."""

    sources: tuple[Source, ...] = ()
    skip: tuple[str, ...] = ()
    always: bool = True
    pick: Literal["first", "stall", "wait"] = "first"
    after: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Form:
    """One form of a report: what its line looks like, and its title."""

    line: re.Pattern[str]
    later: re.Pattern[str] | None
    reach: int
    title: str
    also: tuple[str, ...]
    stack: StackRule | None
    kind: str
    alone: bool


@dataclass(frozen=True)
class ReportRule:
    """How reports of one sort begin. `continues`: within another report the line belongs to that one. `stamped`: the
    line must state when it was written, or that the kernel wrote it."""

    begins: str
    unless: re.Pattern[str] | None
    continues: bool
    stamped: bool
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class Rules:
    """All rules. `skip`: to match names of functions, by family; `canonical`: (pattern, names) of functions
    that titles call otherwise, the last name being the one for titles; `dispatch`: functions that
    call into many others, below which a stall is attributed."""

    reports: tuple[ReportRule, ...]
    skip: Mapping[str, re.Pattern[str]]
    canonical: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]
    dispatch: re.Pattern[str]
    entry: re.Pattern[str]
    severity: Mapping[str, str]

    def begins(self) -> tuple[bytes, ...]:
        """Return the texts by which the scan of a file finds reports."""
        return tuple(dict.fromkeys(rule.begins.encode() for rule in self.reports))


@functools.cache
def kernel_rules() -> Rules:
    """Return the rules of the installed files."""
    here = Path(__file__).parent
    frames, reports, classes = (_yaml(here / f"{name}.yaml") for name in ("frames", "kernel_rules", "classes"))
    return Rules(
        reports=tuple(_rule(one) for one in reports["reports"]),
        skip={name: _names(parts) for name, parts in frames["skip"].items()}
        | {"always": _names(part for name in frames["always"] for part in frames["skip"][name])},
        canonical=tuple((re.compile(one["match"]), tuple(one["names"])) for one in frames["canonical"]),
        dispatch=re.compile("|".join(frames["dispatch"])),
        entry=re.compile("|".join(frames["interrupt_entry"])),
        severity={name: entry["severity"] for name, entry in classes.items()},
    )


def _names(parts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern to match names of functions, whose underscores at the front do not count."""
    return re.compile(f"_*(?:{'|'.join(parts)})")


def _yaml(path: Path) -> Any:
    return yaml.load(path.read_bytes(), Loader=_LOADER)  # noqa: S506  a safe loader


def _rule(one: dict[str, Any]) -> ReportRule:
    unless = one.get("unless")
    return ReportRule(
        one["begins"],
        re.compile("|".join(unless)) if unless else None,
        bool(one.get("continues")),
        bool(one.get("stamped")),
        tuple(_form(form) for form in one["forms"]),
    )


def _form(one: dict[str, Any]) -> Form:
    stack = one["stack"]
    rule = None
    if stack != "none":
        after = stack.get("after")
        rule = StackRule(
            tuple(stack["sources"]),
            tuple(stack.get("skip", ())),
            stack.get("always", True),
            stack.get("pick", "first"),
            re.compile(after) if after else None,
        )
    later = one.get("later")
    return Form(
        re.compile(one["line"].replace("FUNC2", _FUNC2).replace("FUNC", _FUNC)),
        re.compile(later) if later else None,
        one.get("reach", _REACH),
        one["title"],
        tuple(one.get("also", ())),
        rule,
        one["class"],
        bool(one.get("alone")),
    )
