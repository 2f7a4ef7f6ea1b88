"""hybrid_io_advise: whether each file should be read or written buffered or direct, and the evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import polars as pl
from pydantic import Field, model_validator

from whystall.tools.collect.options import ProcOptions, SyscallOptions
from whystall.tools.contract.findings import Finding, Polarity, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.hybrid_io_advise.advice import Advice, Method, Observed, Tried, advise
from whystall.tools.host.hybrid_io_advise.observed import observed
from whystall.tools.host.hybrid_io_advise.trials import Compared, Operation, compare, cpu_crossover, crossover
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

CALIBRATION = "calibration"
_FINDINGS = 10
_NEVER = "1g"
"""Larger than any program's requests."""
_UNDER_PRESSURE = 256 << 10
"""hybrid-run sends smaller requests direct only if set to (its --pressure-direct)."""


class Params(LiveParams):
    """Parameters of hybrid_io_advise. With `request_bytes` nothing is observed: the tool judges one pass over data in
    such requests under memory pressure, of which `reread_pct` is read again."""

    request_bytes: Annotated[int | None, Field(ge=512, le=1 << 30, description="size of requests to judge, bytes")] = (
        None
    )
    operation: Annotated[Literal["read", "write"] | None, Field(description="of request_bytes: read or write")] = None
    reread_pct: Annotated[float | None, Field(ge=0, le=100, description="of its bytes, share read again, %")] = None
    calibrate: Annotated[
        bool, Field(description="try buffered and direct I/O: writes a temporary file, 256 MiB in all")
    ] = False
    directory: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="calibrate here, not where the files are")
    ] = None

    @model_validator(mode="after")
    def _fits(self) -> Params:
        if self.request_bytes is None and (self.operation is not None or self.reread_pct is not None):
            raise ValueError("operation and reread_pct need request_bytes: without it they are observed")
        if self.directory is not None and not self.calibrate:
            raise ValueError("directory needs calibrate: it is where to try")
        if self.request_bytes is not None and (self.pid or self.comm or self.cgroup):
            raise ValueError("request_bytes is judged without a target: leave pid, comm and cgroup out")
        if self.request_bytes is not None and self.calibrate and self.directory is None:
            raise ValueError("calibrate needs a directory where request_bytes is given")
        return self


class Row(Model):
    """One process's reads or writes of one file or numbered series, and the advice. `request_bytes`: half of the bytes
    moved in requests this large or larger. `direct_bytes`: size from which direct is advised. `change`: differs from
    today's method. `basis`: tried (with ratios), or a rule. `spared_bytes_rate`: bytes per second no longer cached.
    Ratios and bounds: see `trials`; None: not tried.
    """

    path: str
    pid: int | None
    comm: str | None
    operation: Operation
    request_bytes: int
    bytes: int
    advice: Method
    change: bool
    reason: str
    basis: Literal["tried", "rule"]
    reread_pct: float | None
    one_pass_pct: float | None
    spared_bytes_rate: float | None
    crossover_bytes: int | None
    direct_bytes: int | None
    ratio: float | None
    low_ratio: float | None
    high_ratio: float | None
    cpu_ratio: float | None


class Crossover(Model):
    """Sizes from which direct I/O was faster on a file system, and from which it cost less CPU time without being
    slower; None: not found."""

    directory: str
    filesystem: str
    operation: Operation
    crossover_bytes: int | None
    cpu_crossover_bytes: int | None


class Refused(Model):
    """A place where trials were impossible or incomplete; `code`: why."""

    directory: str
    code: str
    detail: str


class Remedy(Model):
    """A command to try the advice for a process (see `prompts/`); it is never run."""

    code: str
    pct: float | None = None
    who: str
    cpus: str = ""
    command: str


class Data(Model):
    """Most bytes first; `trials` by file system, operation, method and size."""

    rows: list[Row] = Field(default_factory=list)
    crossovers: list[Crossover] = Field(default_factory=list)
    trials: list[Compared] = Field(default_factory=list)
    refused: list[Refused] = Field(default_factory=list)
    remedies: list[Remedy] = Field(default_factory=list)


def _needs(params: Params) -> list[Need]:
    tried = [Need(CALIBRATION, optional=True)] if params.calibrate else []
    if params.request_bytes is not None:
        return tried
    period = int(min(1.0, params.duration / 4) * 1e9)
    return [
        Need("page_cache"),
        Need("proc", ProcOptions(period_ns=period), optional=True),
        Need("syscalls", SyscallOptions(min_ns=1_000_000), optional=True),
        *tried,
    ]


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return advice for the I/O observed in `recording`, or for the I/O that `params` describe."""
    compared, refused = _trials(recording)
    seen = [_given(params, compared, refused)] if params.request_bytes is not None else observed(recording)
    rows, findings = [], []
    window_ns = max(recording.manifest.window_ns, 1)
    for one in seen:
        advice = advise(one, _tried(one, compared, refused))
        rows.append(_row(one, advice, window_ns))
        findings.append(_finding(one, advice, recording))
    findings = sorted(findings, key=lambda f: f.polarity is Polarity.NORMAL)[:_FINDINGS]  # stable: by bytes
    directs = sorted({(c.directory, c.dev, c.filesystem, c.operation) for c in compared if c.way == "direct"})
    crossings = [
        Crossover(
            directory=directory,
            filesystem=fstype,
            operation=operation,
            crossover_bytes=crossover(rows),
            cpu_crossover_bytes=cpu_crossover(rows),
        )
        for directory, dev, fstype, operation in directs
        for rows in [[c for c in compared if (c.dev, c.operation, c.way) == (dev, operation, "direct")]]
    ]
    where = [
        Refused(directory=r["directory"], code=r["code"], detail=r["detail"]) for r in refused.iter_rows(named=True)
    ]
    return Judgement(
        findings=findings,
        data=Data(
            rows=rows[: params.top],
            crossovers=crossings,
            trials=compared[: 8 * params.top],
            refused=where,
            remedies=_remedies(rows),
        ),
        seen=len(seen) + len(compared),
        totals={"rows": len(rows), "trials": len(compared)},
    )


def worth_trying(recording: Recording) -> list[int]:
    """Return the recording's numbers of the files that should be read or written differently, most bytes first.

    Judged without trials, to choose what to calibrate.
    """
    if not recording.has("page_cache"):
        return []
    changes = [one for one in observed(recording) if advise(one, Tried()).change]
    return list(dict.fromkeys(number for one in changes for number in sorted(one.numbers)))


def _trials(recording: Recording) -> tuple[list[Compared], pl.DataFrame]:
    if not recording.has(CALIBRATION):
        return [], pl.DataFrame(schema=dict.fromkeys(("directory", "dev", "fstype", "code", "detail"), pl.String))
    return compare(recording.table(f"{CALIBRATION}.trials")), recording.table(f"{CALIBRATION}.refusals")


def _tried(one: Observed, compared: list[Compared], refused: pl.DataFrame) -> Tried:
    """Return the trials on the file system of `one`; other file systems may be on other disks."""
    return Tried([c for c in compared if c.dev == one.dev], refused.filter(pl.col("dev") == one.dev)["code"].to_list())


def _given(params: Params, compared: list[Compared], refused: pl.DataFrame) -> Observed:
    """Return the I/O that the parameters describe, under memory pressure, on the file system that was tried if any."""
    places = [(c.dev, c.filesystem) for c in compared] + refused.select("dev", "fstype").rows()
    dev, fstype = places[0] if places else ("", "")
    return Observed(
        operation=params.operation or "read",
        request_bytes=params.request_bytes or 0,
        dev=dev,
        filesystem=fstype,
        reread_pct=params.reread_pct or 0.0,
        harms=True,
        pressed=True,
        waited=True,
    )


def _row(one: Observed, advice: Advice, window_ns: int) -> Row:
    tried = advice.tried
    return Row(
        path=one.path or "",
        pid=one.pid,
        comm=one.comm,
        operation=one.operation,
        request_bytes=one.request_bytes,
        bytes=one.bytes,
        advice=advice.method,
        change=advice.change,
        reason=advice.reason,
        basis="tried" if tried else "rule",
        reread_pct=one.reread_pct,
        one_pass_pct=one.one_pass_pct,
        spared_bytes_rate=_spared(one, advice, window_ns),
        crossover_bytes=advice.crossover_bytes,
        direct_bytes=advice.direct_bytes,
        ratio=tried.ratio if tried else None,
        low_ratio=tried.low_ratio if tried else None,
        high_ratio=tried.high_ratio if tried else None,
        cpu_ratio=tried.cpu_ratio if tried else None,
    )


def _spared(one: Observed, advice: Advice, window_ns: int) -> float | None:
    """Return the bytes per second that would no longer stay in the page cache."""
    spares = advice.change and advice.method in ("direct", "dontneed") and one.cache_bytes > 0
    return one.cache_bytes * 1e9 / window_ns if spares else None


def _finding(one: Observed, advice: Advice, recording: Recording) -> Finding:
    tried = advice.tried if advice.change else None  # otherwise the trials are of a method that is not advised
    metrics = {
        "request_bytes": one.request_bytes,
        "bytes": one.bytes or None,
        "count": one.requests or None,
        "reread_pct": one.reread_pct,
        "one_pass_pct": one.one_pass_pct,
        "crossover_bytes": advice.crossover_bytes,
        "ratio": tried.ratio if tried else None,
        "cpu_ratio": tried.cpu_ratio if tried else None,
        "low_ratio": tried.low_ratio if tried else None,
        "high_ratio": tried.high_ratio if tried else None,
        "spared_rate": _spared(one, advice, max(recording.manifest.window_ns, 1)),
    }
    words = {"advice": advice.method, "reason": advice.reason, "operation": one.operation, "filesystem": one.filesystem}
    return finding(
        "io.advice",
        Subject(type="file", pid=one.pid, comm=one.comm, path=one.path),
        window(recording.manifest.window_ns),
        metrics,
        Severity.MINOR if advice.change else None,
        {name: word for name, word in words.items() if word},
    )


def _remedies(rows: list[Row]) -> list[Remedy]:
    """Return one command per process with advice."""
    found = []
    for pid, comm in dict.fromkeys((row.pid, row.comm) for row in rows if row.change):
        own = [row for row in rows if (row.pid, row.comm) == (pid, comm) and row.change]
        code = next((code for code, asked in CODES.items() if any(asked(row) for row in own)), None)
        if code is None:
            continue
        command = " ".join(["whystall hybrid-run", *_options(own), "--", "COMMAND"])
        who = f"{comm} ({pid})" if comm and pid else "COMMAND"
        found.append(Remedy(code=code, who=who, command=command if code.startswith("hybrid") else ""))
    return found


CODES: dict[str, Callable[[Row], bool]] = {
    "hybrid_direct": lambda row: row.advice == "direct",
    "hybrid_dontneed": lambda row: row.advice == "dontneed",
    "more_readahead": lambda row: row.advice == "readahead",
}


def _options(rows: list[Row]) -> list[str]:
    """Return the hybrid-run options for the advice in `rows` of one process: the sizes from which to go direct, larger
    than any request where it should not."""
    options, never = [], False
    for operation in ("read", "write"):
        own = [row for row in rows if row.operation == operation]
        sizes = [row.direct_bytes for row in own if row.direct_bytes is not None]
        if sizes:
            options.append(f"--{operation}-direct {min(sizes)}")
        elif any(row.advice == "dontneed" and row.request_bytes >= _UNDER_PRESSURE for row in own):
            options.append(f"--{operation}-direct {_NEVER}")
            never = True
    return [*options, *([f"--pressure-direct {_NEVER}"] if never else [])]


TOOL = Tool(
    name="hybrid_io_advise",
    title="Buffered or direct I/O",
    description=(
        "Which files should be read or written direct, buffered, with pages given back, or with readahead, by size, "
        "re-reads and memory pressure. Says what it rests on."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset({"io.advice"}),
    cost=6.0,
)
