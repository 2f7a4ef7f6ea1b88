"""``whystall fleet``: ask many hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from whystall.agent_server.app import App
from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.ask import FleetParams, health
from whystall.agent_server.fleet.inventory import read_hosts
from whystall.agent_server.fleet.text import fleet_text, health_text
from whystall.agent_server.interfaces.cli import console
from whystall.agent_server.interfaces.cli.options import JsonOption, LangOption, underscores
from whystall.agent_server.interfaces.signals import signals
from whystall.agent_server.settings.load import load
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import parse_params

HostsOption = Annotated[
    Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
    typer.Option("--hosts", metavar="LIST", help="node[001-128],login1; default: those of [fleet] in the settings"),
]
HostsFileOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--hosts-file", metavar="FILE", help="a hostlist per line"),
]


SlurmOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--slurm", metavar="JOB", help="the hosts of this job: its id or name"),
]
K8sOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--k8s", metavar="NAMESPACE/JOB", help="the nodes of the pods of this job"),
]
TorchrunOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--torchrun", metavar="[HOST/]PID", help="the hosts of this process's job: a rank, or its torchrun"),
]
JobOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--job", metavar="WORDS", help="each host looks for this job, as `whystall jobs` does"),
]
CollectOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--collect", metavar="PLACE", help="store what hosts answered in this new directory, or fsspec URL"),
]
SourceOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--from", metavar="PLACE", help="judge what --collect stored there instead of asking hosts"),
]
SchedulerOption = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="with --from: workers of this dask scheduler read, tcp://HOST:PORT"
    ),
]


def add(app: typer.Typer) -> None:
    """Add the commands of this module."""
    commands = typer.Typer(
        help="Ask many hosts, each of which runs `whystall serve`, and merge the answers.", rich_markup_mode=None
    )
    commands.command("run")(run)
    commands.command("hosts")(hosts_)
    app.add_typer(commands, name="fleet")


def run(
    tool: Annotated[str, typer.Argument(help="tool to run on each host, or diagnose")],
    hosts: HostsOption = None,
    hosts_file: HostsFileOption = None,
    slurm: SlurmOption = None,
    k8s: K8sOption = None,
    torchrun: TorchrunOption = None,
    job: JobOption = None,
    given: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="NAME=VALUE", help="an argument of the tool; repeatable"),
    ] = None,
    arguments: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--arguments", metavar="JSON", help='arguments of the tool: {"duration": 5}'),
    ] = None,
    collect: CollectOption = None,
    source: SourceOption = None,
    scheduler: SchedulerOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """Run a tool on many hosts and merge the answers.

    Only hosts that the settings know are asked; dead and slow ones are listed, and delay nothing.
    """
    if collect and source:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "--collect and --from exclude each other", "give one of them")
    if scheduler and not source:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "--scheduler is for stored answers", "give it with --from")
    wanted = {
        "tool": underscores(tool),
        "arguments": {**_object(arguments), **dict(map(_pair, given or []))},
        "hosts": _hosts(hosts, hosts_file),
        "job": _job(job, slurm=slurm, k8s=k8s, torchrun=torchrun),
    }
    parse_params(FleetParams, wanted)
    with console.progress() as progress:
        params = FleetParams.model_validate(wanted)
        asked = App().fleet(params, progress, collect=collect, source=source, scheduler=scheduler)
        result = signals.run(asked)
    if as_json:
        console.say_json(result)
    else:
        console.say(fleet_text(result, lang))


def hosts_(
    hosts: HostsOption = None,
    hosts_file: HostsFileOption = None,
    slurm: SlurmOption = None,
    k8s: K8sOption = None,
    torchrun: TorchrunOption = None,
    job: JobOption = None,
    as_json: JsonOption = False,
    lang: LangOption = "en",
) -> None:
    """List the hosts of the fleet, and whether the server of each answers; or those of a job, and its ranks there."""
    answers = signals.run(
        health(_hosts(hosts, hosts_file), load().fleet, _job(job, slurm=slurm, k8s=k8s, torchrun=torchrun))
    )
    if as_json:
        console.say_json([_line(answer) for answer in answers])
    else:
        console.say(health_text(answers, lang))


def _line(answer: Answer) -> dict[str, Any]:
    line: dict[str, Any] = {"host": answer.host, "status": answer.status, "detail": answer.detail}
    if answer.located is not None:
        ranks = {str(rank): pid for pid, rank in (answer.located.ranks or {}).items()}
        line |= {"job": answer.located.job, "pid": answer.located.pid, "ranks": ranks}
    return line


def _job(words: str | None, **by_id: str | None) -> str | None:
    """Return the job of the options, as `FleetParams` takes it."""
    named = [*(f"{kind}:{name}" for kind, name in by_id.items() if name), *([words] if words else [])]
    if len(named) > 1:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "several jobs", "give one of --slurm, --k8s, --torchrun, --job")
    return named[0] if named else None


def _hosts(hosts: str | None, file: Path | None) -> str | None:
    """Return the hostlist of both options, None without them."""
    listed = [*([hosts] if hosts else []), *(read_hosts(file) if file is not None else [])]
    return ",".join(listed) or None


def _object(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "--arguments: not a JSON object", 'write {"duration": 5}')
    return value


def _pair(text: str) -> tuple[str, Any]:
    """Return name and value of ``NAME=VALUE``; a value that is no JSON is a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"--set: {text[:100]!r} is no NAME=VALUE", "write duration=5")
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = value
    return underscores(name), parsed
