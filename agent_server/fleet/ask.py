"""Ask a fleet: resolve hosts or a job, call the tool everywhere, merge."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from pydantic import Field, field_validator

from whystall.agent_server.fleet import collected
from whystall.agent_server.fleet.answers import Answer, Target
from whystall.agent_server.fleet.comparable import TOP
from whystall.agent_server.fleet.fan_out import Limits, Progress, Resource, fan_out, healthy, locating
from whystall.agent_server.fleet.hops import Followed
from whystall.agent_server.fleet.hostlist import LIMIT
from whystall.agent_server.fleet.inventory import Inventory
from whystall.agent_server.fleet.joint import JOINT, live
from whystall.agent_server.fleet.joint_path import ARGUMENTS as PATH_ARGUMENTS
from whystall.agent_server.fleet.joint_path import TOOL as PATH_TOOL
from whystall.agent_server.fleet.joint_path import followed
from whystall.agent_server.fleet.kubernetes import Pod, pods_of
from whystall.agent_server.fleet.merge import FleetResult, merge
from whystall.agent_server.fleet.reading import read_all
from whystall.agent_server.fleet.slurm import hosts_of
from whystall.agent_server.fleet.torchrun import TorchrunJob, job_of
from whystall.agent_server.inputs.recordings import in_thread
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import Params, parse_params
from whystall.tools.contract.text import clean
from whystall.tools.toolbox import registry

if TYPE_CHECKING:
    from whystall.agent_server.diagnosis.params import DiagnoseParams
    from whystall.agent_server.settings.sections.fleet import FleetSettings

_TARGETS = ("pid", "comm", "cgroup", "recording", "traces")
# Arguments that the MCP server adds to those of a tool.
_ADDED = frozenset({"recording", "engine"})
# Arguments of `critical_path` that say what to observe on a host.
_OF_ONE_HOST = frozenset({"pid", "comm", "cgroup", "tid", "peers"})
# Arguments that determine what hosts observe, beside those that name it.
_OBSERVED = ("duration", "live", "job")
# Arguments that say which processes read traces: not those of a host, at the request of a client.
_OF_READERS = ("scheduler", "jobs")
_BY_ID = ("slurm:", "k8s:", "torchrun:")
_LOCATE_S = 5.0  # `find_job` reads the processes and samples half a second


class FleetParams(Params):
    """What to ask, and whom: `hosts`, a `job`, or the job on these hosts; neither: all hosts of the settings."""

    tool: Annotated[str, Field(min_length=1, max_length=100, description="tool to run on each host")]
    arguments: Annotated[dict[str, Any], Field(description="its arguments")] = Field(default_factory=dict)
    hosts: Annotated[
        str | None, Field(min_length=1, max_length=1 << 20, description="hosts to ask: node[001-128],login1")
    ] = None
    job: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=2000,
            description="slurm:ID_OR_NAME, k8s:NAMESPACE/NAME, torchrun:[HOST/]PID, or words for find_job there",
        ),
    ] = None

    @field_validator("arguments", mode="before")
    @classmethod
    def _object(cls, value: Any) -> Any:
        """Accept the text of a JSON object: some clients send nested arguments so."""
        if not isinstance(value, str):
            return value
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("not a JSON object") from None
        return parsed


async def ask(
    params: FleetParams, settings: FleetSettings, progress: Progress | None = None, collect: str | None = None
) -> FleetResult:
    """Return the merged answer of the fleet, and store those of the hosts at `collect`, a new directory or fsspec URL.

    Raises `ToolError` before any host is asked: bad_argument (tool, its arguments, hosts that may not be asked, the
    place), not_found (the job), and those of Slurm and Kubernetes. What a host does never raises; storing may.
    """
    model = _model(params.tool)
    observes_s = _checked(model, params.arguments)
    takes_pid = "pid" in model.model_fields and not params.arguments.keys() & set(_TARGETS)
    together = observes_s > 0 and (params.tool == "hang" or live(params.tool, params.arguments) is not None)
    if together and params.job is None:
        # without a job, each host would observe the one that runs there
        message = f"{params.tool} on many hosts needs a job"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "name it: slurm:, k8s:, torchrun:, or words")
    if together and params.tool != "hang" and not takes_pid:
        message = f"{params.tool} on many hosts observes the process of the job that each host finds"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave out the argument that names a target")
    if params.job is not None and not takes_pid and not params.job.startswith(_BY_ID):
        message = f"job: {params.tool} with these arguments observes no process that could be found by words"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave out job, or the argument that names a target")
    resource = _resource(params.tool, params.arguments)
    targets, skipped, started = await _resolve(params.job, params.hosts, Inventory(settings), takes_pid)
    if collect is not None:
        await in_thread(lambda: collected.check(collect))
    within = observes_s + (_LOCATE_S if any(target.locate for target in targets) else 0.0)
    arguments = params.arguments | ({"top": TOP} if params.tool in JOINT else {})
    bounds = limits(settings, within)
    if together:
        # two windows have no instant in common if one begins when the other ends, or ends two windows after it began
        bounds = replace(bounds, together=2 * observes_s, ready=observes_s)
    paths = None
    if params.tool == PATH_TOOL:
        answers, paths = await _along_paths(targets, arguments | PATH_ARGUMENTS, bounds, progress)
    else:
        answers = await fan_out(targets, params.tool, arguments, bounds, progress, resource)
    if started is not None:
        skipped += started.missing([*answers, *skipped])
    if params.job is not None and params.job.startswith(_BY_ID):
        answers = [one.of_known_job() for one in answers]
    answers += skipped
    if collect is not None:
        await in_thread(lambda: collected.store(collect, params.tool, params.arguments, answers))
    read = await in_thread(lambda: read_all(params.tool, params.arguments, answers))
    return await in_thread(lambda: merge(params.tool, read, params.arguments, paths))


def judge(params: FleetParams, place: str, scheduler: str | None = None) -> FleetResult:
    """Return the merged answer to `params` from what `ask` stored at `place`; arguments that are not given are those
    that hosts were asked with. `scheduler`: address of a dask cluster whose workers read what each host answered; its
    results are loaded as code. Blocks.

    Raises `ToolError`: bad_argument for another tool, or an argument that determined what was observed; bad_recording;
    what `on_cluster` raises.
    """
    model = _model(params.tool)
    if params.hosts is not None or params.job is not None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "stored answers are of the hosts that were asked", "name none")
    stored = collected.index_at(place)
    if stored.tool != params.tool:
        message = f"the stored answers are of {clean(stored.tool)}, not of {params.tool}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "name that tool")
    for name in (*_OBSERVED, *_TARGETS, *_ADDED):
        if name in params.arguments and params.arguments[name] != stored.arguments.get(name):
            message = f"{name} was chosen when the hosts were asked"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out, or ask again")
    arguments = stored.arguments | params.arguments
    _checked(model, arguments)
    answers = collected.load(place, stored, arguments, scheduler=scheduler)
    paths = followed(answers, stored=True) if params.tool == PATH_TOOL else None
    return merge(params.tool, answers, arguments, paths)


async def diagnose_on(host: str, words: str, params: DiagnoseParams, settings: FleetSettings) -> Answer | None:
    """Return the answer of `host` to ``diagnose`` of the job that its own ``find_job`` finds by `words`; None if the
    host may not be asked. `params` name no target.
    """
    given = params.model_dump(mode="json", exclude_defaults=True)
    return await _asked(host, words, "diagnose", given, params.duration + _LOCATE_S, settings)


async def run_on(
    host: str, tool: str, arguments: Mapping[str, Any], observes_s: float, settings: FleetSettings
) -> Answer | None:
    """Return the answer of `host` to ``tool(arguments)``, which observes `observes_s` seconds and needs no process.

    None if the host may not be asked.
    """
    return await _asked(host, None, tool, arguments, observes_s, settings)


async def _asked(
    host: str, words: str | None, tool: str, arguments: Mapping[str, Any], seconds: float, settings: FleetSettings
) -> Answer | None:
    inventory = Inventory(settings)
    name = next((name for name in (host, host.partition(".")[0]) if inventory.knows(name)), None)
    if name is None:
        return None
    (answer,) = await fan_out([Target(inventory.host(name), words)], tool, arguments, limits(settings, seconds))
    return answer


async def _along_paths(
    targets: list[Target], arguments: dict[str, Any], bounds: Limits, progress: Progress | None
) -> tuple[list[Answer], Followed]:
    """Return the answers of `critical_path`, and waits followed from host to host. A process at the other end of a
    connection that was not observed is observed afterwards, if there is time left."""
    end, stored = time.monotonic() + bounds.deadline, "recording" in arguments
    answers = await fan_out(targets, PATH_TOOL, arguments, replace(bounds, together=bounds.deadline), progress)
    paths = await in_thread(lambda: followed(answers, stored=stored))
    hosts = {target.host.name: target.host for target in targets}
    further = [Target(hosts[host], pid=pid) for host, pid in paths.unobserved if host in hosts]
    left = min(bounds.deadline, end - time.monotonic())
    if further and not stored and left > 0:
        given = {name: value for name, value in arguments.items() if name not in _OF_ONE_HOST}
        later = await fan_out(further, PATH_TOOL, given, replace(bounds, deadline=left))
        pids = [target.pid or 0 for target in further]
        paths = await in_thread(lambda: followed(answers, list(zip(pids, later, strict=True))))
    return answers, paths


async def health(hosts: str | None, settings: FleetSettings, job: str | None = None) -> list[Answer]:
    """Return for each of `hosts` (a hostlist, None: all) whether its server answers; with `job` (as in `FleetParams`)
    for each host of the job, where it finds which process and ranks.

    Raises `ToolError` as `ask`.
    """
    inventory = Inventory(settings)
    if job is None:
        return await healthy(inventory.select(hosts), limits(settings, 0.0))
    targets, skipped, started = await _resolve(job, hosts, inventory, takes_pid=True)
    answers = [*await locating(targets, limits(settings, _LOCATE_S)), *skipped]
    return [*answers, *(started.missing(answers) if started is not None else [])]


def limits(settings: FleetSettings, observes_s: float) -> Limits:
    """Return the limits for a tool that observes `observes_s` seconds."""
    return Limits(
        host_deadline=settings.host_deadline + observes_s,
        deadline=settings.deadline + observes_s,
        at_once=settings.at_once,
        reply_limit=settings.reply_limit,
    )


def _resource(tool: str, arguments: dict[str, Any]) -> Resource | None:
    """Return what to read from each host instead of calling `tool`: the ranks that are to be judged together."""
    if (job := live(tool, arguments)) is not None:
        return lambda found: f"whystall://windows/{tool},{found.pid if found else 0},{job.duration:g}"
    if tool == "collective_live":
        message = "collective_live on many hosts observes a running job"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "judge recordings one by one")
    if tool != "slow_node_check":
        return None
    if "traces" not in arguments:
        message = (
            "slow_node_check on many hosts needs live, or traces: the directory with the traces of the ranks there"
        )
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give one of them")
    uri = f"whystall://ranks/{quote(arguments['traces'], safe='')}"
    return lambda _: uri


def _model(tool: str) -> type[Params]:
    """Return the parameters of a tool that has findings. Raises `ToolError` (bad_argument) for other tools."""
    if tool == "diagnose":
        from whystall.agent_server.diagnosis.params import DiagnoseParams

        return DiagnoseParams
    known = registry()
    if tool not in known.names():
        valid = ", ".join([*known.names(), "diagnose"])
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"a fleet cannot be asked for {tool!r}", f"valid: {valid}")
    return known.get(tool).params


def _checked(model: type[Params], arguments: dict[str, Any]) -> float:
    """Check the arguments once, instead of on each host, and return the seconds that the tool observes."""
    if reserved := next((name for name in arguments if name in _OF_READERS), None):
        message = f"{reserved} is no argument of a tool on many hosts"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out; for stored answers there is --scheduler")
    given = parse_params(model, {name: value for name, value in arguments.items() if name not in _ADDED})
    return 0.0 if "recording" in arguments else float(getattr(given, "duration", 0.0))


async def _resolve(
    given: str | None, hosts: str | None, inventory: Inventory, takes_pid: bool
) -> tuple[list[Target], list[Answer], TorchrunJob | None]:
    """Return whom to ask about the job `given`, on `hosts`; answers for those that cannot be asked; and the job of
    torchrun, to list its missing nodes, if all of its hosts are asked.
    """
    kind, _, name = (given or "").partition(":")
    by_id = given is not None and given.startswith(_BY_ID)
    only = inventory.select(hosts) if hosts is not None or not by_id else None
    if not by_id:
        return [Target(host, given) for host in only or []], [], None
    names = {host.name for host in only} if only is not None else None
    if kind == "slurm":
        return *_known(await in_thread(lambda: hosts_of(name)), names, inventory, takes_pid), None
    if kind == "torchrun":
        started = await job_of(name, inventory, limits(inventory.settings, _LOCATE_S))
        targets, unknown = _known([(host, started.words) for host in started.hosts], names, inventory, takes_pid)
        return targets, unknown, started if names is None else None
    namespace, _, job = name.rpartition("/")
    pods = await pods_of(namespace or "default", job)
    idle = [Answer(pod.node or pod.name, "not_asked", _why_not(pod)) for pod in pods if not pod.running]
    targets, skipped = _known([(pod.node, pod.uid) for pod in pods if pod.running], names, inventory, takes_pid)
    return targets, [*skipped, *idle], None


def _known(
    found: Collection[tuple[str, str]], only: Collection[str] | None, inventory: Inventory, takes_pid: bool
) -> tuple[list[Target], list[Answer]]:
    """Return targets for the hosts that may be asked, of `found` (host, words for ``find_job``)."""
    targets: dict[Target, None] = {}
    unknown = []
    for host, words in list(found)[:LIMIT]:
        if only is not None and host not in only:
            continue
        if inventory.knows(host):
            targets[Target(inventory.host(host), words if takes_pid else None)] = None
        else:
            unknown.append(Answer(host, "not_asked", "not in [fleet] of the settings"))
    return list(targets), unknown


def _why_not(pod: Pod) -> str:
    return f"the pod {pod.name} is {pod.phase}" if pod.node else f"the pod {pod.name} has no node yet"
