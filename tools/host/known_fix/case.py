"""Versions and the signature of a case, from the tables of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from whystall.tools.contract.findings import Finding
from whystall.tools.known_fixes.match import Found, Signature
from whystall.tools.recording.store import Recording

COLLECTOR = "versions"
_LOG = "log"
_MOST_TEXTS = 4000


def versions_of(recording: Recording) -> dict[str, list[Found]]:
    """Return the versions of each component. What a log states counts instead of what this host has now."""
    return versions_by_component(recording.table("versions.versions").iter_rows(named=True))


def versions_by_component(named: Iterable[Mapping[str, Any]]) -> dict[str, list[Found]]:
    """Return the versions of each component in rows of the collector ``versions``; see `versions_of`."""
    rows = list(named)
    logged = {row["component"] for row in rows if row["where"] == _LOG}
    found: dict[str, list[Found]] = {}
    for row in rows:
        if row["component"] in logged and row["where"] != _LOG:
            continue
        one = Found(row["version"], row["where"], row["vendor_built"])
        if one not in found.setdefault(row["component"], []):
            found[row["component"]].append(one)
    return found


def signature_of(
    recording: Recording, causes: Iterable[str] = (), texts: Iterable[str] = (), xids: Iterable[int] = ()
) -> Signature:
    """Return what `recording` states of crashes and Xids, with further `causes`, `texts` and `xids`."""
    functions: set[str] = set()
    said = [*texts]
    codes = set(xids)
    for row in _rows(recording, "crashes.reports"):
        functions |= {row["function"], *row["functions"].split()}
        said += [f"{row['title']} {row['also']} {row['modules']} {row['functions']}"]
    for row in _rows(recording, "crashes.failures"):
        said += [row["title"], f"{row['title']} {row['detail']}", *row["frames"]]
    for row in _rows(recording, "device_log.events"):
        if row["kind"] == "xid":
            codes.add(row["code"])
    return Signature(frozenset(causes), frozenset(functions - {""}), frozenset(codes), tuple(said[:_MOST_TEXTS]))


def signature_of_findings(findings: Iterable[Finding], cause: str | None, texts: Iterable[str] = ()) -> Signature:
    """Return what the findings of a diagnosis show: their texts, and the Xids of abnormal ones."""
    said, codes = [*texts], set()
    functions: set[str] = set()
    for one in findings:
        said += [text for text in one.attributes.values() if text]
        functions |= {one.attributes[name] for name in ("function", "kernel_path") if name in one.attributes}
        number = one.attributes.get("xid", "").partition(".")[0]
        if one.kind == "gpu.xid" and number.isdigit():
            codes.add(int(number))
    causes = frozenset({cause} if cause else ())
    return Signature(causes, frozenset(functions), frozenset(codes), tuple(said[:_MOST_TEXTS]))


def _rows(recording: Recording, table: str) -> Iterable[dict[str, Any]]:
    frame = recording.find(table)
    return [] if frame is None else frame.iter_rows(named=True)
