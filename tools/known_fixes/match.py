"""Match versions and the signature of a case with the known defects. Pure.

A version in the affected range is no evidence: a defect is `relevant` only if the case also shows something that
identifies it (a function, an Xid, a text). With the same kind of symptom alone it is `possible`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from whystall.tools.known_fixes.catalogue import Defect, components, defects, specifiers, within
from whystall.tools.known_fixes.versions import UnknownVersion, base_of, is_development, parsed

Standing = Literal["relevant", "possible", "affected", "fixed", "unaffected", "unknown"]
ORDER: tuple[Standing, ...] = ("relevant", "possible", "affected", "unknown", "fixed", "unaffected")


class Found(NamedTuple):
    """The version of a component, where it was found (``kernel``, ``package`` ...), and whether a vendor built it."""

    version: str
    where: str = ""
    vendor_built: bool = False


@dataclass(frozen=True)
class Signature:
    """What a case shows: ids of causes, functions of stacks and crashes, Xids, and texts (messages, titles, frames)."""

    causes: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    xids: frozenset[int] = frozenset()
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Known:
    """How a known defect stands to a case.

    `certain`: False if the version is in the range, but a vendor may have fixed the defect in it. `shown`: what the
    case shows of the defect; `unseen`: components whose version is not known.
    """

    defect: Defect
    standing: Standing
    version: str = ""
    where: str = ""
    certain: bool = True
    shown: tuple[str, ...] = ()
    unseen: tuple[str, ...] = field(default=())


def known_defects(
    versions: Mapping[str, Sequence[Found]], signature: Signature, arch: str = "", among: Iterable[Defect] = ()
) -> list[Known]:
    """Return how every known defect stands to a case, the most relevant first.

    Args:
        versions: the versions found of each component; several if processes differ.
        signature: what the case shows; without anything no defect is relevant or possible.
        arch: of the CPU, as ``uname -m`` prints it; empty: unknown.
        among: these instead of the catalogue.
    """
    found = [_stand(defect, versions, signature, arch) for defect in (among or defects())]
    return sorted(found, key=lambda one: ORDER.index(one.standing))


def _stand(defect: Defect, versions: Mapping[str, Sequence[Found]], signature: Signature, arch: str) -> Known:
    names = [defect.component, *defect.requires]
    unseen = tuple(name for name in names if not versions.get(name))
    if defect.arch and arch and arch != defect.arch:
        return Known(defect, "unaffected")
    if defect.component in unseen:
        return Known(defect, "unknown", unseen=unseen)
    here = Known(defect, "unaffected")
    for one in versions[defect.component]:
        states = [_state(one, defect.affected, components()[defect.component].vendor_patched)]
        states += [
            max((_state(two, text, components()[name].vendor_patched) for two in versions.get(name, ())), default=_OPEN)
            for name, text in defect.requires.items()
        ]
        state = min(states)
        if state == _OPEN:
            here = Known(defect, "unknown", one.version, one.where, unseen=unseen or (defect.component,))
        elif state > _OPEN:
            exact, alike = shown_by(defect, signature)
            standing: Standing = "relevant" if exact else "possible" if alike else "affected"
            certain = state == _CERTAIN and bool(not defect.arch or arch)
            return Known(defect, standing, one.version, one.where, certain, (*exact, *alike))
        elif here.standing != "unknown":
            here = Known(defect, _past(defect, one.version), one.version, one.where)
    return here


_NOT, _OPEN, _MAYBE, _CERTAIN = 0, 1, 2, 3


def _state(found: Found, text: str, vendor_patched: bool) -> int:
    try:
        inside = within(found.version, text)
        if vendor_patched and found.vendor_built and found.version.endswith(".0") and _splits(text, found.version):
            return _OPEN
        development = is_development(found.version)
        if not inside and development and within(base_of(found.version), text):
            return _MAYBE
    except UnknownVersion:
        return _OPEN
    if not inside:
        return _NOT
    return _MAYBE if development or (vendor_patched and found.vendor_built) else _CERTAIN


def _splits(text: str, version: str) -> bool:
    """Return whether a bound of the range `text` lies within the series x.y of `version`, x.y.0.

    Vendors keep x.y.0 in the name while they follow x.y.z: 6.1.0-27-amd64 is 6.1.115.
    """
    series = parsed(version).release[:2]
    bounds = [parsed(one.version.removesuffix(".*")).release for one in specifiers(text)]
    return any(bound[:2] == series and any(bound[2:]) for bound in bounds)


def _past(defect: Defect, version: str) -> Standing:
    """Return `fixed` for a version from the fixed one on, else `unaffected`."""
    if defect.fixed is None or defect.fixed_component:
        return "unaffected"
    try:
        return "fixed" if within(version, f">={defect.fixed}") else "unaffected"
    except UnknownVersion:
        return "unaffected"


def shown_by(defect: Defect, signature: Signature) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what of `signature` identifies `defect`, and what has the same symptom only.

    Functions match as whole names, also as the last part of a qualified one; texts without regard to case, and all
    parts of an alternative must be in one text.
    """
    whole = {name.rpartition("::")[2].partition("(")[0] for name in signature.functions} | signature.functions
    exact = [f"function {name}" for name in defect.functions if name in whole or _names(name, signature.texts)]
    exact += [f"Xid {number}" for number in defect.xids if number in signature.xids]
    low = [text.lower() for text in signature.texts]
    for parts in defect.texts:
        if any(all(part.lower() in text for part in parts) for text in low):
            exact.append("text " + ", ".join(parts))
    alike = [f"cause {cause}" for cause in defect.causes if cause in signature.causes]
    return tuple(exact), tuple(alike)


def _names(function: str, texts: Iterable[str]) -> bool:
    word = re.compile(rf"(?<![\w]){re.escape(function)}(?![\w])")
    return any(word.search(text) for text in texts)
