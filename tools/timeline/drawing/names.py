"""Names of threads in a drawing."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from whystall.tools.timeline.sched import SchedTrace

NO_NAME = "<...>"
"""ftrace's own name for a thread whose name it no longer has."""
IDLE = "<idle>:0"
"""The label of the idle threads."""
_I64_MIN = -(1 << 63)


def json_text(text: pl.Expr) -> pl.Expr:
    """Return `text` as a JSON string with its quotes. Control characters, which tables do not hold, are dropped."""
    safe = text.str.replace_all(r"[\x00-\x1f]", "").str.replace_all("\\", "\\\\", literal=True)
    return joined('"%"', safe.str.replace_all('"', '\\"', literal=True))


def joined(template: str, *values: pl.Expr | str) -> pl.Expr:
    """Return `template` with a value for each ``%`` (a name is a column); null where one is. Braces are plain text,
    unlike in some versions of `pl.format`."""
    texts = template.split("%")
    parts = [pl.lit(texts[0])]
    for value, text in zip(values, texts[1:], strict=True):
        parts += [pl.col(value) if isinstance(value, str) else value, pl.lit(text)]
    return pl.concat_str(parts)


def json_object(**pairs: pl.Expr) -> pl.Expr:
    """Return a JSON object of those `pairs` that are not null; values are JSON already."""
    parts = [joined(f'"{name}":%', value) for name, value in pairs.items()]
    return joined("{%}", pl.concat_str(parts, separator=",", ignore_nulls=True))


def microseconds(nanoseconds: pl.Expr) -> pl.Expr:
    """Return microseconds with all three decimals, as text."""
    return pl.format("{}.{}", nanoseconds // 1_000, (nanoseconds % 1_000).cast(pl.String).str.zfill(3))


class Names:
    """The threads' names, by instant and at the end. A label is ``comm:number``: the host's number or, in a container,
    the one in `numbers`."""

    def __init__(self, trace: SchedTrace, numbers: Mapping[int, int]) -> None:
        names = trace.table("names").sort("tid", "at_ns", maintain_order=True)
        shown = pl.DataFrame(
            {"tid": list(numbers), "number": list(numbers.values())}, schema={"tid": pl.Int32, "number": pl.Int32}
        )
        names = names.join(shown, on="tid", how="left", maintain_order="left").with_columns(
            number=pl.coalesce("number", "tid")
        )
        self._numbers = shown
        named = names.with_columns(label=_label(pl.col("comm"), pl.col("number")))
        first = pl.col("tid") != pl.col("tid").shift(1)
        self._changes = named.select(
            "tid", "label", "comm", at_ns=pl.when(first.fill_null(True)).then(_I64_MIN).otherwise("at_ns")
        )
        self._renames = named.filter(~first.fill_null(True)).select("tid", "at_ns", "comm")
        last = named.group_by("tid", maintain_order=True).agg(
            pl.col("label").last(), pl.col("comm").last(), pl.col("number").last(), pl.col("pid").max()
        )
        # two containers may use the same number: there the host's number is added
        twice = last["label"].is_duplicated()
        unambiguous = _label(pl.format("{}/{}", "comm", "tid"), pl.col("number"))
        self._last = last.with_columns(label=pl.when(twice).then(unambiguous).otherwise("label"))

    def renames(self) -> pl.DataFrame:
        """Return tid, at_ns, comm: the names threads took while traced."""
        return self._renames

    def then(self, frame: pl.DataFrame, tid: str, instant: str, label: str) -> pl.DataFrame:
        """Return `frame` with the label that its thread had at an instant."""
        rows = self._at(frame, tid, instant, "label", label)
        return rows.with_columns(pl.coalesce(label, self._nameless(tid)).alias(label))

    def comm(self, frame: pl.DataFrame, tid: str, instant: str, comm: str) -> pl.DataFrame:
        """Return `frame` with the name that its thread had at an instant."""
        rows = self._at(frame, tid, instant, "comm", comm)
        idle = pl.when(pl.col(tid) == 0).then(pl.lit("swapper")).otherwise(pl.lit(NO_NAME))
        return rows.with_columns(pl.coalesce(comm, idle).alias(comm))

    def _at(self, frame: pl.DataFrame, tid: str, instant: str, what: str, alias: str) -> pl.DataFrame:
        changes = self._changes.select(pl.col("tid").alias(tid), pl.col(what).alias(alias), at_then="at_ns")
        if self._renames.is_empty():
            return frame.join(changes.drop("at_then"), on=tid, how="left", maintain_order="left")
        rows = frame.with_row_index("row_then").sort(instant, maintain_order=True)
        rows = rows.join_asof(
            changes.sort("at_then"), left_on=instant, right_on="at_then", by=tid, check_sortedness=False
        )
        return rows.sort("row_then").select(*frame.columns, alias)

    def last(self, frame: pl.DataFrame, tid: str, label: str) -> pl.DataFrame:
        """Return `frame` with the label of its thread's lane, null where there is no thread."""
        last = self._last.select(pl.col("tid").alias(tid), pl.col("label").alias(label))
        rows = frame.join(last, on=tid, how="left", maintain_order="left")
        return rows.with_columns(pl.when(pl.col(tid) >= 0).then(pl.coalesce(label, self._nameless(tid))).alias(label))

    def processes(self, frame: pl.DataFrame, tid: str, pid: str) -> pl.DataFrame:
        """Return `frame` with the thread group of its thread, null when unknown."""
        last = self._last.select(pl.col("tid").alias(tid), pl.col("pid").alias(pid))
        return frame.join(last, on=tid, how="left", maintain_order="left")

    def all_threads(self) -> pl.DataFrame:
        """Return tid, comm, pid (-1 unknown) of all threads with a name, by their last one; leaders first."""
        return (
            self._last.filter(pl.col("tid") > 0)
            .select("tid", "comm", "pid")
            .sort(pl.col("pid") != pl.col("tid"), "tid")
        )

    def threads(self, tids: pl.Series) -> pl.DataFrame:
        """Return tid, label, pid and `process` (the group leader's label, null when unknown), by process."""
        rows = self.last(pl.DataFrame({"tid": tids}), "tid", "label")
        rows = rows.join(self._last.select("tid", "pid"), on="tid", how="left").with_columns(
            pid=pl.when(pl.col("pid") >= 0).then("pid")
        )
        leaders = self._last.select(pid="tid", process="label")
        return rows.join(leaders, on="pid", how="left").sort(pl.coalesce("pid", "tid"), "tid")

    def _nameless(self, tid: str) -> pl.Expr:
        number = pl.col(tid).replace_strict(
            self._numbers["tid"], self._numbers["number"], default=pl.col(tid), return_dtype=pl.Int32
        )
        return pl.when(pl.col(tid) == 0).then(pl.lit(IDLE)).otherwise(_label(pl.lit(NO_NAME), number))


def _label(comm: pl.Expr, number: pl.Expr) -> pl.Expr:
    return pl.format("{}:{}", pl.when(comm == "").then(pl.lit(NO_NAME)).otherwise(comm), number)
