"""What is fuzzed: parsers of files, logs, texts of other programs, and of what is sent to the server.

Each target takes bytes. It may refuse them with the errors that its docstring names; anything else is a defect.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whystall.tools.contract.errors import ToolError

_TESTS = Path(__file__).parents[1]
_RECORDED = _TESTS / "recorded"
_DATA = _TESTS / "tools"
_SEEDS = Path(__file__).parent / "seeds"
_SEED = 6000  # bytes of a seed: short ones are mutated more often


@dataclass(frozen=True)
class Target:
    """`call`: gets the bytes and a path to which it may write them; `seeds`: valid inputs; `tokens`: texts to insert;
    `refusals`: exceptions that it documents."""

    call: Callable[[bytes, Path], object]
    seeds: Callable[[], Iterable[bytes]]
    tokens: tuple[str, ...] = ()
    refusals: tuple[type[Exception], ...] = field(default=(ToolError,))


def _file(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Return a call that writes the bytes to a file called `name` and reads it."""

    def call(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return call


def _files(*patterns: str, root: Path = _DATA) -> Callable[[], Iterable[bytes]]:
    def seeds() -> Iterable[bytes]:
        for pattern in patterns:
            found = sorted(root.glob(pattern))
            assert found, pattern
            for path in found[:6]:
                data = path.read_bytes()
                yield gzip.decompress(data)[:_SEED] if path.suffix == ".gz" else data[:_SEED]

    return seeds


def _trace(path: Path) -> object:
    from whystall.agent_server.inputs.recordings import open_source

    return open_source(path)


def _profile(path: Path) -> object:
    from whystall.tools.timeline.profiles import open_ranks

    return open_ranks(path)


def _stacks(path: Path) -> object:
    from whystall.tools.profiles.common.open_stacks import open_stacks

    return open_stacks(path)


def _crashes(path: Path) -> object:
    from whystall.tools.crashes.read import read_logs

    return read_logs([str(path)])


def _kernel_log(path: Path) -> object:
    from whystall.tools.collect.log_file import recording_of_log

    return recording_of_log(path)


def _core_files() -> Iterable[bytes]:
    """A core file with one note, NT_PRSTATUS, and one segment."""
    head = bytearray(b"\x7fELF\x02\x01\x01" + bytes(57))
    struct.pack_into("<HH", head, 16, 4, 62)
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, 2)
    status = struct.pack("<i8xh18xi", 11, 11, 4242).ljust(336, b"\0")
    note = struct.pack("<III", 5, len(status), 1) + b"CORE\0\0\0\0" + status
    notes = struct.pack("<IIQQQQQQ", 4, 0, 176, 0, 0, len(note), len(note), 4)
    segment = struct.pack("<IIQQQQQQ", 1, 7, 1000, 0, 0, 4096, 4096, 4096)
    return [bytes(head) + notes + segment + note]


def _flight_dump(name: str) -> Callable[[bytes, Path], object]:
    def call(data: bytes, folder: Path) -> object:
        from whystall.tools.timeline.nccl.flight_dump import content_of

        return content_of(folder / name, data)

    return call


def _cards(data: bytes, folder: Path) -> object:
    from whystall.tools.collect.cards.read import cards_in

    return cards_in(data)


def _metrics(data: bytes, folder: Path) -> object:
    from whystall.tools.collect.serving.exposition import parsed

    return parsed(data.decode("utf-8", "replace"))


def _topology(path: Path) -> object:
    from whystall.tools.collect.topology.files import read
    from whystall.tools.collect.topology.rows import Rows

    read(rows := Rows(), [str(path)])
    return rows


def _alerts(data: bytes, folder: Path) -> object:
    from whystall.agent_server.integrations.alerts import payload

    batch = payload.read(data, payload.ALERTMANAGER, {}, frozenset({"job"}), 1e9)
    return list(batch.parse(0, 100))


def _routes(data: bytes, folder: Path) -> object:
    from whystall.agent_server.integrations.alerts.routefile import from_text

    return from_text(data)


def _knowledge_cards(data: bytes, folder: Path) -> object:
    from whystall.knowledge_base.exchange import read

    with read(io.BytesIO(data)) as lines:
        return list(lines.cards())


def _shipped_cards() -> Iterable[bytes]:
    from whystall.knowledge_base.incidents import curated

    return [card.model_dump_json().encode() for card in curated()[:6]]


def _settings(data: bytes, folder: Path) -> object:
    import os

    from whystall.agent_server.settings.load import SECTIONS, validate
    from whystall.agent_server.settings.sources import read_settings

    path = folder / "whystall.toml"
    path.write_bytes(data)
    os.environ["WHYSTALL_CONFIG"] = str(path)
    return validate(read_settings(SECTIONS))


def _arguments(data: bytes, folder: Path) -> object:
    """The arguments of a tool call: the first key is its name."""
    from whystall.tools.contract.params import parse_params
    from whystall.tools.toolbox import registry

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    models = [tool.params for tool in registry().all()]
    arguments: dict[str, Any] = given
    results = []
    for model in models:
        try:
            results.append(parse_params(model, arguments))
        except ToolError:
            continue
    return results


def _question(data: bytes, folder: Path) -> object:
    from whystall.agent_server.job_lookup.models import Wanted
    from whystall.agent_server.job_lookup.search_terms import search_terms

    text = data.decode("utf-8", "replace")[:4000]
    return search_terms(Wanted(text=text), ())


def _proc(data: bytes, folder: Path) -> object:
    from whystall.tools.collect import proc_parse as parse

    readers: tuple[Callable[[bytes], object], ...] = (
        *(parse.pid_stat, parse.schedstat, parse.keyed, parse.host_stat, parse.loadavg, parse.pressure),
        *(parse.diskstats, parse.syscall, parse.kernel_stack, parse.fdinfo, parse.link_path),
    )
    for one in readers:
        try:
            one(data)
        except ValueError:
            continue
    return None


TARGETS = {
    "trace_ftrace": Target(_file("trace.txt", _trace), _files("timeline/data/ftrace/*.txt"), ("sched_switch", "[001]")),
    "trace_kineto": Target(
        _file("rank0.json", _profile), _files("trace_kineto/*", root=_SEEDS), ('"ph"', '"ts"', "1e308", '"args"')
    ),
    "stacks_folded": Target(_file("a.folded", _stacks), _files("stacks_folded/*", root=_SEEDS), (";", "_[k]")),
    "stacks_perf": Target(_file("perf.txt", _stacks), _files("stacks_perf/*", root=_SEEDS), ("cycles:", "\t")),
    "stacks_speedscope": Target(
        _file("a.json", _stacks), _files("stacks_speedscope/*", root=_SEEDS), ('"samples"', '"weights"')
    ),
    "logs_kernel": Target(
        _file("kern.log", _crashes), _files("logs_kernel/*", root=_SEEDS), ("BUG:", "Call Trace:", "+0x1/0x2", "<IRQ>")
    ),
    "logs_ranks": Target(
        _file("rank2.log", _crashes), _files("logs_ranks/*", root=_SEEDS), ("Traceback", "Signal 9", "[rank3]:")
    ),
    "logs_xid": Target(_file("dmesg.txt", _kernel_log), _files("logs_xid/*", root=_SEEDS), ("Xid", "SXid", "PCI:")),
    "core_file": Target(_file("core.4242", _crashes), _core_files),
    "flight_recorder_json": Target(
        _flight_dump("_dump_1.json"), _files("flight_recorder/absent_json/_dump_*.json", root=_RECORDED)
    ),
    "flight_recorder_pickle": Target(
        _flight_dump("nccl_trace_rank_0"), _files("flight_recorder/chain/*", root=_RECORDED)
    ),
    "cards": Target(_cards, _files("cards/*", root=_SEEDS), ("npu-smi", "|", '"value"')),
    "metrics": Target(_metrics, _files("metrics/*", root=_SEEDS), ("vllm:", "{", 'le="+Inf"', "NaN")),
    "topology": Target(_file("topo.txt", _topology), _files("topology/*", root=_SEEDS), ("NV12", "GPU0", "<object ")),
    "alerts": Target(_alerts, _files("alerts/*", root=_SEEDS), ('"alerts"', '"labels"', "startsAt")),
    "routes": Target(_routes, _files("routes/*", root=_SEEDS), ("matchers:", "&a", "*a", "!!python")),
    "knowledge_cards": Target(_knowledge_cards, _shipped_cards, ('"cause"', '"id"')),
    "settings": Target(_settings, _files("settings/*", root=_SEEDS), ("[access]", "[[x]]", '"""')),
    "tool_arguments": Target(_arguments, _files("tool_arguments/*", root=_SEEDS), ('"pid"', '"top"', "null", "-1")),
    "questions": Target(_question, _files("questions/*", root=_SEEDS), ("rank ", "pid ", "第")),
    "proc": Target(_proc, _files("proc/*", root=_SEEDS)),
}
