"""The model of all tables of ranks, and how a mapping turns a table's columns into it."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from whystall.tools.contract.text import clean
from whystall.tools.files.input import bad
from whystall.tools.timeline.collectives import OPS, canonical_op
from whystall.tools.timeline.profile_reading.groups import RANK_LIMIT, ranks_of
from whystall.tools.timeline.tables.mapping import REMEDY, UNITS, Mapping, first_fit

_I, _N, _S = pl.Int64, pl.Int32, pl.String

ROWS = pl.Schema(
    {
        "rank": _N,
        # -1 unknown
        "step": _N,
        # one of `PHASES`
        "phase": _S,
        "name": _S,
        # null: a sum of the step, of which only the length is known
        "start_ns": _I,
        "length_ns": _I,
        # when the host requested it; null unknown
        "requested_ns": _I,
        # of communication: one of `collectives.OPS`, and the key of its group
        "op": _S,
        "group": _S,
        "peer": _N,
        "seq": _I,
        "bytes": _I,
        # ranks with another one do other work; empty unknown
        "stage": _S,
        "host": _S,
    }
)
"""One row per interval of a rank, or per sum of a phase in a step."""

PHASES = (
    "step",  # the step as a whole
    "compute",  # the rank's own work; what is not named otherwise
    "data",  # waiting for data: input, not other ranks
    "communication",  # in sums: the part during which no work ran
    "overlapped",  # communication beside work, only in sums
    "all_communication",  # of which the part beside work is not known, only in sums
    "receive",  # the part of the communication that waits for another stage, only in sums
    "wait",  # waiting for other ranks outside of an operation
    "idle",
    "busy",  # work and communication together, only in sums
    "metric",  # no time at all
)
EVERYBODY = "all"
"""The group of communication that names none, of ranks without a stage."""
_LARGEST, _LARGEST_STEP = 2**62, 2**31
# ISO 8601, as spreadsheets, pandas and Python write it: day, time, fraction, sign and offset of the time zone.
_INSTANT = (
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r"[0-9]*\s?(?:Z|UTC|([+-])([0-9]{2}):?([0-9]{2}))?$"
)
_TEXT = 300
"""Characters of a phase that decide what it is."""


def rows_of(path: Path, mapping: Mapping, raw: pl.DataFrame, rank: int) -> tuple[pl.DataFrame, int]:
    """Return the rows (`ROWS`) of the table `raw`, and how many of its own cannot be used. `rank` of a table without
    that column, -1 unknown.

    Raises `ToolError` (bad_trace) if none can be used.
    """
    stages = _stages(raw, mapping)
    for column, pattern in mapping.where.items():
        raw = raw.filter(_fits(column, pattern))
    if mapping.step_is_row:
        raw = raw.with_columns((pl.int_range(pl.len()) + 1).alias("row step"))
    read = _Reader(raw, mapping)
    frame = raw.select(
        rank=read.number("rank", rank),
        step=pl.col("row step").cast(_I) if mapping.step_is_row else read.number("step", -1),
        name=read.text("name"),
        phase=read.text("phase"),
        start_ns=read.time("start"),
        end_ns=read.time("end"),
        length_ns=read.time("duration"),
        requested_ns=read.time("requested"),
        group=read.text("group"),
        peer=read.number("peer", -1),
        seq=read.number("seq", -1),
        bytes=read.number("bytes", -1),
        stage=read.text("stage"),
        host=read.text("host"),
        **{f"sum {phase}": read.time_in(column) for phase, column in mapping.sums.items()},
        **{f"by {column}": read.text(column) for column in _others(mapping)},
    ).with_columns(pl.coalesce("length_ns", pl.col("end_ns") - pl.col("start_ns")).alias("length_ns"))
    if mapping.sums:
        frame = frame.drop("phase", "length_ns")
        sums = [f"sum {phase}" for phase in mapping.sums]
        index = [name for name in frame.columns if name not in sums]
        frame = frame.unpivot(sums, index=index, variable_name="phase", value_name="length_ns")
        frame = frame.with_columns(pl.col("phase").str.strip_prefix("sum "))
    else:
        frame = _phases(frame, mapping)
    timed = (
        (pl.col("length_ns") >= 0)
        & (pl.col("length_ns") < _LARGEST)
        & (pl.col("start_ns").abs() < _LARGEST).fill_null(True)
    )
    usable = timed | (pl.col("requested_ns") > 0) | (pl.col("phase") == "metric")
    good = frame.filter(
        usable.fill_null(False)
        & pl.col("rank").is_between(0, RANK_LIMIT - 1)
        & (pl.col("step") < _LARGEST_STEP)
        & (pl.col("phase") != "")
    )
    odd = frame.height - good.height
    if good.is_empty():
        why = "no row of it has a rank and a time" if odd else "it has no rows"
        raise bad(path, why, REMEDY if mapping.source == "table" else "export it again")
    good = _with_peers(_with_groups(good, mapping), mapping)
    if stages:
        good = good.with_columns(stage=pl.col("rank").replace_strict(stages, default="", return_dtype=_S))
    good = good.with_columns(
        pl.col("length_ns").fill_null(0),
        pl.col("step", "peer").clip(-1),
        *(_inert(good, column) for column in ("name", "group", "stage", "host")),
    )
    return good.select(pl.col(name).cast(dtype, strict=False) for name, dtype in ROWS.items()), odd


def in_place(rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return `rows` (`ROWS`) without those that begin before, or last beyond, two other steps of their rank: a mistyped
    instant would cover or hide these steps. Also return how many. Data may be fetched long before."""
    work = pl.col("phase") != "data"
    ended = rows.with_columns(end=pl.col("start_ns") + pl.col("length_ns"))
    usual = ended.filter(work & pl.col("start_ns").is_not_null() & (pl.col("step") >= 0))
    usual = usual.group_by("rank", "step").agg(began=pl.col("start_ns").median(), done=pl.col("end").median())
    # two references: one may be the step with the mistyped instant
    usual = usual.sort("rank", "step").select(
        "rank",
        "step",
        *(pl.col("began").shift(n).over("rank").alias(f"began {n}") for n in (2, 3)),
        *(pl.col("done").shift(-n).over("rank").alias(f"done {n}") for n in (2, 3)),
    )
    beside = ended.join(usual, on=["rank", "step"], how="left", maintain_order="left")
    early = [pl.col("start_ns") <= pl.col(f"began {n}") for n in (2, 3)]
    late = [pl.col("end") >= pl.col(f"done {n}") for n in (2, 3)]
    odd = beside.select(work & ((early[0] & early[1]) | (late[0] & late[1])).fill_null(value=False)).to_series()
    return rows.filter(~odd), int(odd.sum())


class _Reader:
    """Expressions that read a table's columns as a mapping says."""

    def __init__(self, raw: pl.DataFrame, mapping: Mapping) -> None:
        self._raw = raw
        self._types = raw.schema
        self._mapping = mapping

    def text(self, field: str) -> pl.Expr:
        """Return a column as text; empty where there is none."""
        column = self._column(field)
        return pl.col(column).cast(_S).fill_null("").str.strip_chars() if column else pl.lit("")

    def number(self, field: str, default: int) -> pl.Expr:
        """Return a column as whole numbers (``3``, ``3.0``, ``step3``, ``rank 3``); `default` where there is none."""
        column = self._column(field)
        if not column:
            return pl.lit(default, _I)
        if self._types[column].is_integer():
            return pl.col(column).cast(_I).fill_null(default)
        digits = pl.col(column).cast(_S).str.extract(r"^\D{0,20}?(-?[0-9]{1,18})(?:\.0*)?\s*$")
        return digits.cast(_I, strict=False).fill_null(default)

    def time(self, field: str) -> pl.Expr:
        """Return a column of time in ns, null where there is none: numbers, in the unit in which its name may end, or
        instants (without a time zone: of UTC, as only differences count)."""
        column = self._column(field)
        if column:
            return self._time(column, self._mapping.unit_ns)
        for name in self._mapping.names(field):
            for unit, factor in UNITS.items():
                if f"{name}_{unit}" in self._types:
                    return self._time(f"{name}_{unit}", factor)
        return pl.lit(None, _I)

    def time_in(self, column: str) -> pl.Expr:
        """Return the time in ns in a column of this very name."""
        return self._time(column, self._mapping.unit_ns) if column in self._types else pl.lit(None, _I)

    def _time(self, column: str, factor: int) -> pl.Expr:
        kind, value = self._types[column], pl.col(column)
        if kind.is_integer():
            return value.cast(_I) * factor
        if kind.is_float():
            return (value.cast(pl.Float64) * factor).round().cast(_I, strict=False)
        if isinstance(kind, pl.Datetime):
            return value.dt.epoch("ns")
        if isinstance(kind, pl.Duration):
            return value.dt.total_nanoseconds()
        first = self._raw[column].drop_nulls().head(1).cast(_S).str.strip_chars()
        if first.str.contains(_INSTANT).any():
            return _instant(value.cast(_S).str.strip_chars())
        # Whole and fraction apart: seconds of the epoch have more digits than a float.
        parts = value.cast(_S).str.strip_chars().str.extract_groups(r"^(-?)([0-9]{1,18})(?:\.([0-9]+))?$")
        whole = parts.struct.field("2").cast(_I, strict=False)
        part = (pl.lit("0.") + parts.struct.field("3").fill_null("0")).cast(pl.Float64, strict=False)
        size = whole * factor + (part * factor).round().cast(_I, strict=False)
        exact = pl.when(parts.struct.field("1") == "-").then(-size).otherwise(size)
        rough = (
            (value.cast(_S).str.strip_chars().cast(pl.Float64, strict=False) * factor).round().cast(_I, strict=False)
        )
        return pl.when(whole.abs() < _LARGEST // factor).then(exact).otherwise(rough)

    def _column(self, field: str) -> str:
        return next((name for name in self._mapping.names(field) if name in self._types), "")


def _instant(text: pl.Expr) -> pl.Expr:
    """Return instants (`_INSTANT`) in ns since 1970, null for other text."""
    day, time, fraction, sign, hours, minutes = (text.str.extract(_INSTANT, n + 1) for n in range(6))
    whole = pl.format("{} {}", day, time).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns", strict=False)
    part = fraction.fill_null("0").str.pad_end(9, "0").cast(_I)
    ahead = (hours.cast(_I) * 3600 + minutes.cast(_I) * 60) * UNITS["s"]
    return whole.dt.epoch("ns") + part - pl.when(sign == "-").then(-ahead).otherwise(ahead).fill_null(0)


def _others(mapping: Mapping) -> list[str]:
    """Return the fields, beside those of the model, that say who communicates with whom."""
    used = [column for one in mapping.groups for column in one.same]
    used += [column for one in mapping.peers for column in (one.column, *one.same)]
    return sorted(set(used))


def _phases(frame: pl.DataFrame, mapping: Mapping) -> pl.DataFrame:
    """Give each row its phase and operation, by the text in its column ``phase``; the name is that text by default."""
    said = pl.when(pl.col("phase") != "").then("phase").otherwise("name").str.slice(0, _TEXT)
    frame = frame.with_columns(said=said)
    known = frame["said"].unique().to_list()
    phases = {text: first_fit(mapping.phases, text, "") for text in known}
    frame = frame.with_columns(
        phase=pl.col("said").replace_strict(phases, default="", return_dtype=_S),
        name=pl.when(pl.col("name") != "").then("name").otherwise("said"),
    )
    names = frame.filter(pl.col("phase") == "communication")["name"].unique().to_list()
    ops = {name: _op(name, mapping) for name in names}
    return frame.with_columns(op=pl.col("name").replace_strict(ops, default="", return_dtype=_S)).drop("said")


def _op(name: str, mapping: Mapping) -> str:
    found = first_fit(mapping.operations, name, "")
    if found in OPS:
        return found
    found = canonical_op(re.sub("[- ]", "_", name))
    # communication that is not named more closely
    plain = re.fullmatch(r"(all[-_ ])?(通信|comm|communication|collective|nccl|hccl|rccl|gloo)", name, re.IGNORECASE)
    return mapping.unnamed_operation if plain or not name else found


def _with_groups(frame: pl.DataFrame, mapping: Mapping) -> pl.DataFrame:
    if "op" not in frame.columns:
        frame = frame.with_columns(op=pl.lit(""))
    keys: list[pl.Expr] = [pl.when(pl.col("group") != "").then("group")]
    for one in mapping.groups:
        known = [column for column in one.same if (frame[f"by {column}"] != "").any()]
        parts = [pl.lit(one.name), *(pl.format(f"{column} {{}}", f"by {column}") for column in known)]
        keys.append(pl.when(_fits("name", one.match)).then(pl.concat_str(parts, separator=", ")))
    # ranks of one stage may be compared, even if others took part
    keys += [pl.when(pl.col("stage") != "").then(pl.format("stage {}", "stage")), pl.lit(EVERYBODY)]
    talks = pl.col("phase") == "communication"
    return frame.with_columns(group=pl.when(talks).then(pl.coalesce(keys)).otherwise(pl.lit("")))


def _with_peers(frame: pl.DataFrame, mapping: Mapping) -> pl.DataFrame:
    for one in mapping.peers:
        key = [f"by {column}" for column in one.same]
        places = frame.select("rank", *key, place=pl.col(f"by {one.column}").cast(_I, strict=False)).unique()
        # a place with several ranks (tensor parallel) has no single peer
        places = places.drop_nulls("place").group_by(*key, "place").agg(pl.col("rank").unique().alias("there"))
        alone = (
            places.filter(pl.col("there").list.len() == 1)
            .with_columns(other=pl.col("there").list.first())
            .drop("there")
        )
        frame = frame.with_columns(place=pl.col(f"by {one.column}").cast(_I, strict=False) + one.offset)
        frame = frame.join(alone, on=[*key, "place"], how="left", maintain_order="left")
        chosen = _fits("name", one.match) & (pl.col("peer") < 0)
        frame = frame.with_columns(peer=pl.when(chosen).then(pl.col("other").fill_null(-1)).otherwise("peer")).drop(
            "other", "place"
        )
    return frame


def _stages(raw: pl.DataFrame, mapping: Mapping) -> dict[int, str]:
    """Return the stage of each rank that the table lists."""
    if mapping.stages is None:
        return {}
    for column, pattern in mapping.stages.where.items():
        raw = raw.filter(_fits(column, pattern))
    found: dict[int, str] = {}
    for text in raw[mapping.stages.ranks].cast(_S).unique(maintain_order=True).drop_nulls().to_list():
        ranks = ranks_of("[" + text.strip(" ()[]").rstrip(", ") + "]") or ()
        whole = len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1))
        found |= dict.fromkeys(ranks, f"{ranks[0]}-{ranks[-1]}" if whole else clean(text))
    return found


def _inert(frame: pl.DataFrame, column: str) -> pl.Expr:
    """Return a column of text without what a terminal or page would obey; its few values are converted once."""
    values = frame[column].unique().to_list()
    return pl.col(column).replace_strict({value: clean(value) for value in values}, return_dtype=_S)


def _fits(column: str, pattern: str) -> pl.Expr:
    return pl.col(column).cast(_S).str.strip_chars().str.contains(f"^(?:{pattern})$")
