"""Build the result rows of a difference; an increase and a decrease that are one change become one row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from whystall.tools.profiles.flamegraph_diff.comparison import Change, Difference
from whystall.tools.profiles.flamegraph_diff.data import ChangeRow, Direction, What
from whystall.tools.stacks.tree import NO_NODE, CallTree, Part, call_tree

_CANCEL = 0.2
"""A loss and a gain are one move if their sum is at most this share of the larger."""
_CODE = frozenset({"python", "native", "kernel", "other"})
"""Kinds whose code can move into each other; operators cannot."""
_LISTED = 64
_ITS_OWN = 0.9


def rows_of(found: Difference, before: Part, after: Part) -> list[ChangeRow]:
    """Return the rows of `found`, most important first; `before` and `after` are the compared parts."""
    lines = [_lines(part) for part in (before, after)]
    moves = _moves(found)
    rows: list[ChangeRow] = []
    for at, change in enumerate(found.rows):
        if at in moves.values():
            continue
        if at in moves:
            rows.append(_moved(found, found.rows[moves[at]], change, lines))
        else:
            rows.append(_row(found, change, lines))
    order = ("proven", "possible", "effect")
    rows += [_renamed(found, old, new, lines) for old, new in found.renamed]
    return sorted(rows, key=lambda row: order.index(row.role))


def _moves(found: Difference) -> dict[int, int]:
    """Return, per row that gained, the row that lost as much: the same callee with another caller, or code that moved
    between caller and callee."""
    gains = [at for at, row in enumerate(found.rows) if row.role == "proven" and row.cost > 0]
    losses = [at for at, row in enumerate(found.rows) if row.role == "proven" and row.cost < 0]
    pairs: dict[int, int] = {}
    for gain in gains:
        for loss in losses:
            one, other = found.rows[gain], found.rows[loss]
            cancel = abs(one.cost + other.cost) <= _CANCEL * max(abs(one.cost), abs(other.cost))
            if cancel and loss not in pairs.values() and _related(found.tree, one, other):
                pairs[gain] = loss
                break
    return pairs


def _related(tree: CallTree, gain: Change, loss: Change) -> bool:
    if gain.group.frame == loss.group.frame:
        return gain.group.what in ("calls", "place") or loss.group.what in ("calls", "place")
    kinds = tree.frames["kind"]
    if not {kinds[gain.group.frame], kinds[loss.group.frame]} <= _CODE:
        return False
    tops = loss.group.tops
    tops = tops[tree.parent[tops] != NO_NODE]
    callers = np.unique(tree.frame[tree.parent[tops]])
    taken_over = gain.group.what == "own" and loss.after == 0 and gain.group.frame in callers
    tops = gain.group.tops
    tops = tops[tree.parent[tops] != NO_NODE]
    given_out = loss.group.what == "own" and gain.before == 0 and loss.group.frame in tree.frame[tree.parent[tops]]
    return bool(taken_over or given_out)


def _row(found: Difference, change: Change, lines: Sequence[dict[str, str]]) -> ChangeRow:
    tree, group = found.tree, change.group
    what: What = "calls" if group.what in ("calls", "place") and group.caller >= 0 else "total"
    what = "own" if group.what == "own" else what
    shown = group.caller if what == "calls" else group.frame
    side = 0 if change.after == 0 else 1
    top = int(group.tops[np.argmax(tree.total[side][group.tops])])
    if what != "calls" and (outer := _new_above(tree, change, top, side)) != top:
        # a function that is new or gone with all its callees: report the outermost one
        top, what, shown = outer, "total", int(tree.frame[outer])
    label = tree.labels[shown]
    return ChangeRow(
        name=tree.frames["name"][shown],
        what=what,
        callee=tree.labels[group.frame] if what == "calls" else "",
        direction=_direction(change),
        role=change.role,
        code=lines[side].get(label, ""),
        frame_kind=tree.frames["kind"][shown],
        path=_path(tree, top, 2 if what == "calls" else 1),
        before_pct=change.before,
        after_pct=change.after,
        change_pct=change.change,
        low_pct=max(change.change - change.error, -change.before),
        high_pct=min(change.change + change.error, 100 - change.before),
        cost_pct=change.cost,
        ratio=change.after / change.before if change.before > 0 else None,
        relative=change.relative,
        p_value=change.p_value,
    )


def _new_above(tree: CallTree, change: Change, node: int, side: int) -> int:
    """Return the outermost function above `node` that only `side` has and that contains almost nothing else."""
    share = (change.before, change.after)[side] / 100
    while (up := int(tree.parent[node])) != NO_NODE:
        here = tree.frame_total[:, int(tree.frame[up])] / tree.sums
        if here[1 - side] > 0 or here[side] * _ITS_OWN > share or min(change.before, change.after) > 0:
            break
        node = up
    return node


def _path(tree: CallTree, node: int, leave: int) -> list[str]:
    labels = [tree.label(one) for one in tree.path(node)[:-leave]]
    return labels[-_LISTED:]


def _direction(change: Change) -> Direction:
    if change.before == 0:
        return "appeared"
    if change.after == 0:
        return "vanished"
    return "grew" if (change.cost if change.role != "effect" else change.change) > 0 else "shrank"


def _moved(found: Difference, loss: Change, gain: Change, lines: Sequence[dict[str, str]]) -> ChangeRow:
    """Return one row for a gain that is another's loss."""
    old, new = _row(found, loss, lines), _row(found, gain, lines)
    error = math.hypot(loss.error, gain.error)
    before, after = loss.before + gain.before, loss.after + gain.after
    change = after - before
    return new.model_copy(
        update={
            "direction": "moved",
            "counterpart": old.name,
            "before_pct": before,
            "after_pct": after,
            "change_pct": change,
            "low_pct": max(change - error, -before),
            "high_pct": min(change + error, 100 - before),
            "cost_pct": loss.cost + gain.cost,
            "ratio": after / before,
            "relative": after / before / found.scale.ratio if found.scale.found else None,
        }
    )


def _renamed(found: Difference, old: str, new: str, lines: Sequence[dict[str, str]]) -> ChangeRow:
    tree = found.tree
    frame = tree.labels.index(new)
    shares = 100 * tree.frame_total[:, frame] / tree.sums
    change = float(shares[1] - shares[0])
    tops = np.nonzero(tree.frame == frame)[0]
    return ChangeRow(
        name=tree.frames["name"][frame],
        what="total",
        counterpart=old,
        direction="renamed",
        role="effect",
        code=lines[1].get(new, ""),
        frame_kind=tree.frames["kind"][frame],
        path=_path(tree, int(tops[np.argmax(tree.total[1][tops])]), 1),
        before_pct=float(shares[0]),
        after_pct=float(shares[1]),
        change_pct=change,
        low_pct=change,
        high_pct=change,
        cost_pct=0.0,
        ratio=float(shares[1] / shares[0]),
        relative=float(shares[1] / shares[0] / found.scale.ratio) if found.scale.found else None,
        p_value=None,
    )


def _lines(part: Part) -> dict[str, str]:
    """Return, per function label without line, the file and line with most of its time."""
    tree = call_tree(part)
    frames = tree.frames.with_columns(total=pl.Series(tree.frame_total[0])).filter(
        (pl.col("line") > 0) & (pl.col("file") != "")
    )
    short = pl.col("file").str.extract(r"([^/\\]*)$")
    known = frames.sort("total", descending=True, maintain_order=True).select(
        key=pl.when(pl.col("kind") == "python").then(pl.format("{} ({})", "name", _module())).otherwise("name"),
        code=pl.format("{}:{}", short, "line"),
    )
    return dict(known.unique("key", keep="first", maintain_order=True).iter_rows())


def _module() -> pl.Expr:
    return pl.col("file").str.extract(r"((?:[^/\\]+[/\\]__init__\.py)|[^/\\]*)$")


def share_of_common(tree: CallTree) -> float:
    """Return the share of weight, in percent, of functions in both profiles (the smaller of both shares)."""
    shares = tree.frame_own / np.maximum(tree.sums, np.finfo(float).tiny)[:, None]
    both = (tree.frame_total > 0).all(axis=0)
    return float(100 * shares[:, both].sum(axis=1).min())
