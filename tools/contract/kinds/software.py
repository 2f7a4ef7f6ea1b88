"""Kinds of findings about versions of software."""

from __future__ import annotations

from whystall.tools.contract.kinds.spec import KindSpec, Mechanism, kind

KINDS: dict[str, KindSpec] = {
    # `component` has in `version` the known defect `name`, of which the case shows so many `signs`; `fixed`: the first
    # version without it
    "software.defect": kind(Mechanism.VERSIONS, "host", "signs", "name component version fixed"),
}
