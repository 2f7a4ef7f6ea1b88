"""Normalize the names of frames, to compare two runs or two versions of a program.

Line numbers, addresses, numbers of steps and threads, and a compiler's clones of a function differ without a difference
of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from whystall.tools.stacks.model import FRAMES, StackProfile
from whystall.tools.stacks.tree import labels_of

# An address without a symbol. Words like ``facade`` are hexadecimal too: without 0x a digit and 8 characters needed.
_ADDRESS = r"^(?:0x[0-9a-fA-F]+|[0-9a-fA-F]*[0-9][0-9a-fA-F]*)$"
_BARE = 8
# gcc and clang: parts and specialised copies of one function
_CLONE = r"(?:\.(?:isra|constprop|part|cold|lto_priv|llvm)(?:\.\d+)*)+$"
_PARTS = ("name", "file", "kind")
_STEP = r"^ProfilerStep#\d+$"


def comparable(profile: StackProfile) -> StackProfile:
    """Return `profile` with normalized frame names; samples and stacks are unchanged."""
    name, kind, file = pl.col("name"), pl.col("kind"), pl.col("file")
    module = file.str.extract(r"([^/\\]*)$").fill_null("")
    unnamed = name.str.contains(_ADDRESS) & (name.str.starts_with("0x") | (name.str.len_chars() >= _BARE))
    code = kind.is_in(["native", "kernel", "other"])
    owner = pl.when(module == "").then(pl.lit("[unknown]")).otherwise("[" + module + "]")
    numbered = (kind == "thread") | name.str.contains(_STEP)
    alike = (
        pl.when(code & unnamed)
        .then(owner)
        .when(code)
        .then(name.str.replace(_CLONE, ""))
        .when(numbered)
        .then(name.str.replace_all(r"\d+", "*"))
        .otherwise(name)
    )
    return replace(profile, tables={**profile.tables, "frames": profile.frames.with_columns(alike.alias("name"))})


def renamed(profile: StackProfile, new: Mapping[str, Mapping[str, object]]) -> StackProfile:
    """Return `profile` with the frames whose label is in `new` renamed to its name, file and kind."""
    if not new:
        return profile
    frames = profile.frames.with_columns(labels_of(profile.frames, lines=False).alias("label"))
    names = pl.DataFrame(
        [{"label": label, **{f"new_{part}": row[part] for part in _PARTS}} for label, row in new.items()],
        schema={"label": pl.String, **{f"new_{part}": pl.String for part in _PARTS}},
    )
    joined = frames.join(names, on="label", how="left", maintain_order="left")
    columns = [pl.coalesce(f"new_{part}", part).alias(part) for part in _PARTS]
    changed = joined.with_columns(columns).select(FRAMES.names())
    return replace(profile, tables={**profile.tables, "frames": changed})
