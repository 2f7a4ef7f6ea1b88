"""Logs of the NCCL Inspector: plain and verbose, of several communicators, damaged and hostile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Head
from whystall.tools.timeline.nccl import inspector as nccl_inspector
from whystall.tools.timeline.nccl.inspector import detect, read
from whystall.tools.timeline.profiles import candidates, open_profile, with_work

T0 = 1_752_867_229_000_000  # us
WORLD, PAIR = "0xe62dedaa97644a", "0x9e7a479f95a66c"


def line(
    number: int = 1,
    coll: str = "AllReduce",
    *,
    comm: tuple[str, int, int] = (WORLD, 3, 8),
    us: int = 400,
    written: int = T0 + 9000,
    verbose: str = "",
    **more: Any,
) -> dict[str, Any]:
    """One line; `verbose`: in the form of that version."""
    kind = "p2p" if coll in ("Send", "Recv") else "coll"
    perf: dict[str, Any] = {
        kind: coll,
        f"{kind}_sn": number,
        f"{kind}_msg_size_bytes": 4096,
        f"{kind}_exec_time_us": us,
        f"{kind}_timing_source": "kernel_gpu",
        f"{kind}_algobw_gbs": 1.5,
        **more,
    }
    begin = T0 + 1000 * number
    kernels = [
        {"channel_id": channel, "kernel_start_ts": begin + 20 + channel, "kernel_stop_ts": begin + 20 + us + channel}
        for channel in range(2)
    ]
    if verbose:
        perf["event_trace_ts"] = {f"{kind}_start_ts": begin, f"{kind}_stop_ts": begin + 5}
    if verbose == "v4.0":
        perf["event_trace_ts"]["kernel_events"] = kernels
    elif verbose == "v4.1":
        perf["events"] = [{"event_type": "KernelCh", "event_trace_ts": one} for one in kernels]
        perf["events"].append({"event_type": "ProxyOp", "proxy_id": 17, "proxy_start_ts": begin + 1})
    return {
        "header": {"id": comm[0], "rank": comm[1], "n_ranks": comm[2], "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": verbose or "v4.0",
            "dump_timestamp_us": written,
            "hostname": "node-1",
            "pid": 77,
        },
        f"{kind}_perf": perf,
    }


def log(path: Path, *lines: dict[str, Any] | str) -> Path:
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("version", ["v4.0", "v4.1"])
@pytest.mark.parametrize("name", ["node-1-pid77.log", "x.jsonl", "x.log.gz"])
def test_the_verbose_form_has_the_time_when_it_ran(tmp_path: Path, version: str, name: str) -> None:
    profile = read(log(tmp_path / name, line(1, verbose=version), line(2, "ReduceScatter", verbose=version, us=70)))
    assert profile.collectives.select("start_ns", "end_ns", "launch_ns").rows() == [
        ((T0 + 1020) * 1000, (T0 + 1421) * 1000, (T0 + 1000) * 1000),
        ((T0 + 2020) * 1000, (T0 + 2091) * 1000, (T0 + 2000) * 1000),
    ]
    assert profile.collectives.select("op", "group", "seq", "bytes", "state").rows() == [
        ("all_reduce", WORLD, 1, 4096, "completed"),
        ("reduce_scatter", WORLD, 2, 4096, "completed"),
    ]
    assert (profile.source, profile.clock, profile.notes) == ("nccl_inspector", "real", ())
    run = profile.run
    assert (profile.rank, run.world_size, run.backend, run.host, run.pid) == (3, 8, "nccl", "node-1", 77)
    assert profile.groups.rows() == [(WORLD, WORLD, "", [], 8)]


def test_else_only_how_long_it_took(tmp_path: Path) -> None:
    profile = read(log(tmp_path / "a.log", line(1, us=400), line(2, us=300)))
    assert sorted(profile.collectives.select("start_ns", "end_ns", "seq").rows()) == [
        ((T0 + 8600) * 1000, (T0 + 9000) * 1000, 1),
        ((T0 + 8700) * 1000, (T0 + 9000) * 1000, 2),
    ]
    assert set(profile.collectives["launch_ns"]) == {0}
    assert dict(profile.notes) == {"starts_unknown": "2 of 2"}


def test_several_communicators(tmp_path: Path) -> None:
    lines = [
        line(1),
        line(1, comm=(PAIR, 1, 2)),
        line(5, "Send", p2p_peer=6),
        line(6, "Recv", comm=(PAIR, 1, 2), p2p_peer=0),
    ]
    lines[1]["header"]["comm_name"] = "TP\x1b[1m"
    profile = read(log(tmp_path / "a.log", *lines))
    assert (profile.rank, profile.run.world_size) == (3, 8)
    assert sorted(profile.groups.rows()) == [(PAIR, PAIR, "TP\\x1b[1m", [], 2), (WORLD, WORLD, "", [], 8)]
    # a peer of a part of the ranks has a number within it only
    recorded = profile.collectives.select("op", "group", "seq", "peer").rows()
    assert set(recorded) == {
        ("all_reduce", WORLD, 1, -1),
        ("all_reduce", PAIR, 1, -1),
        ("send", WORLD, 5, 6),
        ("recv", PAIR, 6, -1),
    }


def test_how_durations_were_measured_is_reported(tmp_path: Path) -> None:
    one = line(verbose="v4.0", coll_timing_source="collective_cpu")
    other = line(2, verbose="v4.0")
    assert dict(read(log(tmp_path / "a.log", one, other)).notes) == {
        "coarse_durations": "kernel_gpu 1, collective_cpu 1"
    }


def test_places_that_contradict_each_other_are_no_rank(tmp_path: Path) -> None:
    profile = read(log(tmp_path / "a.log", line(1), line(2, comm=("0x1", 5, 8))))
    assert profile.rank == -1


def test_odd_lines_are_counted(tmp_path: Path) -> None:
    odd = [
        "{",
        "not json",
        '{"header": {}}',
        '{"header": {"id": 1}, "coll_perf": {"coll": 7}}',
        "[1]",
        "\x00",
        "{" * 90_000,
    ]
    odd.append(json.dumps(line(9, us=-5)))
    profile = read(log(tmp_path / "a.log", line(1), "", *odd, line(2)))
    assert dict(profile.notes)["odd_lines"] == str(len(odd))
    assert profile.collectives.height == 2


@pytest.mark.parametrize("times", [{}, {"kernel_events": []}, {"kernel_events": [{"kernel_start_ts": 0}]}, None])
def test_a_trace_of_events_without_times(tmp_path: Path, times: dict[str, Any] | None) -> None:
    profile = read(log(tmp_path / "a.log", line(1, event_trace_ts=times)))
    assert profile.collectives["end_ns"].to_list() == [(T0 + 9000) * 1000]


def test_numbers_out_of_all_bounds(tmp_path: Path) -> None:
    one = line(1, coll_sn=2**63 - 1, coll_msg_size_bytes=2**60)
    profile = read(log(tmp_path / "a.log", one))
    assert profile.collectives.select("seq", "bytes").rows() == [(-1, -1)]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"{}", b"hello\n" * 10, b'{"header": {}}\n' * 3])
def test_what_is_no_log(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.log").write_bytes(content)
    with pytest.raises(ToolError) as caught:
        read(tmp_path / "a.log")
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert not detect(Head(tmp_path / "a.log"))


def test_a_log_cut_short(tmp_path: Path) -> None:
    path = log(tmp_path / "a.log.gz", *(line(number, verbose="v4.0") for number in range(2000)))
    path.write_bytes(path.read_bytes()[:-2000])
    profile = read(path)
    assert 0 < profile.collectives.height < 2000
    assert dict(profile.notes)["odd_lines"] in ("1", "2")
    path.write_bytes(path.read_bytes()[:12])
    with pytest.raises(ToolError, match="damaged"):
        read(path)


def test_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_inspector, "_LONGEST", 4 << 20)
    monkeypatch.setattr(nccl_inspector, "_NOTHING", 1000)
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(b" " * (32 << 20)))
    with pytest.raises(ToolError, match="without a line"):
        read(path)
    path.write_bytes(gzip.compress(b"x\n" * (1 << 20)))
    with pytest.raises(ToolError, match="are no operations"):
        read(path)


def test_it_is_found_among_others(tmp_path: Path) -> None:
    log(tmp_path / "node-1-pid77.log", line(1))
    log(tmp_path / "node-1-pid78.log.gz", line(1, comm=(PAIR, 0, 2)), line(1, comm=(WORLD, 0, 8)))
    (tmp_path / "train.log").write_text("step 1\nstep 2\n")
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    (tmp_path / "broken.log.gz").write_bytes(b"\x1f\x8bno")
    found = candidates(tmp_path)
    assert [(one.rank, one.path.name, one.source) for one in found] == [
        (0, "node-1-pid78.log.gz", "nccl_inspector"),
        (3, "node-1-pid77.log", "nccl_inspector"),
    ]
    assert open_profile(tmp_path, 3).collectives.height == 1
    with pytest.raises(ToolError, match="not what ran"):
        with_work(found)
