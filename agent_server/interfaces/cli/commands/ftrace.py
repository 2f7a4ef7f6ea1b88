"""``whystall ftrace``: record scheduling events of the kernel, and convert traces to timelines.

Options also have the spellings of MindStudio Insight's scripts, older and newer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from whystall.agent_server.conversion.traces import convert_file
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.presentation.results import capture_text, conversion_text
from whystall.tools.collect.ftrace.cpus import parse_cpus
from whystall.tools.collect.ftrace.options import DEFAULT_GROUPS, GROUPS, Progress, RecordOptions
from whystall.tools.contract.errors import ErrorCode, ToolError

_Backend = Literal["auto", "ebpf", "tracefs", "trace-cmd", "debugfs"]
_MIB = 1 << 20
_DURATION_S = 30.0


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Record and convert traces of the kernel's scheduler.", rich_markup_mode=None)
    group.command("record")(record)
    group.command("convert")(convert)
    app.add_typer(group, name="ftrace")


def record(
    output: Annotated[
        Optional[Path],  # noqa: UP045  typer reads this at run time, also on Python 3.10
        typer.Option("--output", "-o", metavar="FILE", help="where to write (default: trace.txt)"),
    ] = None,
    duration: Annotated[
        float,
        typer.Option("--duration", "--record_time", help="seconds; 0 or less: until Ctrl-C"),
    ] = _DURATION_S,
    cpu: Annotated[str, typer.Option("--cpu", "--cpu_list", metavar="LIST", help="CPUs like 0,1,4 or 0-3,8")] = "all",
    events: Annotated[
        str,
        typer.Option("--events", metavar="LIST", help=f"groups of {', '.join(GROUPS)}"),
    ] = ",".join(DEFAULT_GROUPS),
    pid: Annotated[
        str, typer.Option("--pid", metavar="LIST", help="only these processes or threads, and what they start")
    ] = "",
    children: Annotated[bool, typer.Option("--children", help="with --pid: also the children they have now")] = False,
    nspid: Annotated[
        bool,
        typer.Option(
            "--nspid",
            "--NSpid",
            help="containers: --pid is as seen inside, and their PIDs are written to pid_mapping.json",
        ),
    ] = False,
    container: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--container", metavar="PID", min=1, help="with --nspid: a process of the container, host's PID"),
    ] = None,
    clock: Annotated[str, typer.Option("--clock", help="trace clock: mono, mono_raw, boot ...")] = "mono",
    buffer_size: Annotated[
        int,
        typer.Option("--buffer-size", "--bf_size", metavar="KIB", help="buffer per CPU; 0: 16 MiB, or less"),
    ] = 0,
    mode: Annotated[
        Literal["auto", "ring", "stream"],
        typer.Option("--mode", help="ring: keep the newest, write at the end; stream: write all the time"),
    ] = "auto",
    engine: Annotated[
        _Backend,
        typer.Option("--engine", "--backend", help="how to record; debugfs is tracefs"),
    ] = "auto",
    rotate: Annotated[int, typer.Option("--rotate", metavar="MIB", min=0, help="a new file after so much")] = 0,
    keep: Annotated[int, typer.Option("--keep", min=0, help="with --rotate: only the newest so many files")] = 0,
    min_free: Annotated[
        int, typer.Option("--min-free", metavar="MIB", min=0, help="stop before the disk has less")
    ] = 256,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace what is at --output")] = False,
    sched: Annotated[Literal["0", "1"], typer.Option("--sched", hidden=True)] = "1",  # they are always recorded
    irq: Annotated[Literal["0", "1"], typer.Option("--irq", hidden=True)] = "1",
    futex: Annotated[Literal["0", "1"], typer.Option("--futex", hidden=True)] = "0",
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Record scheduling events of the kernel into a file; Ctrl-C ends it well."""
    # loads all engines, which converting does not need
    from whystall.agent_server.conversion.ftrace_capture import capture, capture_with_bpf

    pids = _pids(pid)
    options = RecordOptions(
        cpus=parse_cpus(cpu),
        groups=_groups(events, {"irq": irq, "softirq": irq, "futex": futex}),
        duration_s=duration,
        mode=mode,
        clock=clock,
        buffer_kb=buffer_size,
        pids=pids,
        children=children,
        in_namespace=nspid and bool(pids),
        namespace_of=container,
        rotate_bytes=rotate * _MIB,
        keep=keep,
        min_free_bytes=min_free * _MIB,
        engine=engine if engine == "trace-cmd" else "auto",
    )
    place = output or Path("trace.dat" if engine == "trace-cmd" else "trace.txt")
    with signals.as_wish() as stop, console.progress() as report:
        if engine == "ebpf":
            summary = signals.run(capture_with_bpf(options, place, stop=stop, overwrite=overwrite, progress=report))
        else:
            step = _reporter(report, duration)
            summary = capture(options, place, stop=stop, namespaces=nspid, overwrite=overwrite, progress=step)
    if as_json:
        console.say_json(summary)
    else:
        console.say(capture_text(summary, lang))


def convert(
    source: Annotated[
        Path,
        typer.Option("--input", "-i", metavar="FILE", help="a trace: ftrace's text, gz, html, .dat; or a recording"),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help=".json, .pftrace, .db (ftrace_data.db) or .txt")
    ],
    format: Annotated[
        Optional[Literal["json", "perfetto", "db", "text"]],  # noqa: UP045
        typer.Option("--format", help="json: MindStudio Insight, Perfetto, Chrome; db: MindStudio (default: by name)"),
    ] = None,
    cpu: Annotated[
        str, typer.Option("--cpu", "--cpu_list", metavar="LIST", help="only these CPUs, like 0,1,4 or 0-3,8")
    ] = "all",
    profiling_data: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--profiling_data", "--profile", metavar="DIR", help="a profile whose clock to write on"),
    ] = None,
    with_profile: Annotated[bool, typer.Option("--with-profile", help="also draw the profile")] = False,
    pid_mapping: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--pid_mapping", metavar="FILE", help="write PIDs as containers know them (see record --nspid)"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace what is at --output")] = False,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Convert a trace to a timeline: lanes of CPUs and threads, wakers, migrations, holes."""
    summary = convert_file(
        source,
        output,
        format=format,
        cpus=parse_cpus(cpu),
        profiling_data=profiling_data,
        with_profile=with_profile,
        pid_mapping=pid_mapping,
        overwrite=overwrite,
    )
    if as_json:
        console.say_json(summary)
    else:
        console.say(conversion_text(summary, lang))


def _reporter(report: console.Progress | None, duration: float) -> Callable[[Progress], None] | None:
    if report is None:
        return None

    def step(now: Progress) -> None:
        report(now.elapsed_s, max(duration, 0.0), f"{now.phase}: {now.written >> 20} MiB, {now.lost} lost")

    return step


def _pids(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"--pid: {text!r} is no list of PIDs", "give PIDs like 17,4242")
    return tuple(dict.fromkeys(int(word) for word in words))


def _groups(events: str, switches: dict[str, str]) -> tuple[str, ...]:
    """Return the groups in `events`, without those that a switch of MindStudio's script turns off, with the one it
    adds.
    """
    named = [word.strip() for word in events.split(",") if word.strip()]
    wanted = [name for name in named if name == "futex" or switches.get(name) != "0"]
    return tuple(dict.fromkeys(wanted + (["futex"] if switches["futex"] == "1" else [])))
