"""The policy as such: which way a request goes, and why. It exists in C only; what Python knows of it is compared."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from whystall.tools.hybrid_io import layout, library
from whystall.tools.hybrid_io.policy import Choice, Policy, Pressure, choose, policy_of, pressure

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
LIMIT = 8 * GIB
EMPTY = Pressure(LIMIT, None, 10 * GIB, 0, 0, 0, 0, 0)
FULL = EMPTY._replace(cached_bytes=LIMIT)
FULL_OF_JUNK = FULL._replace(active_bytes=GIB)
FULL_OF_USED = FULL._replace(active_bytes=LIMIT)


def test_the_defaults_are_those_of_the_engine() -> None:
    theirs = layout.Policy()
    library.load().hy_policy_default(ctypes.byref(theirs))
    ours = Policy().struct()
    assert {n: getattr(ours, n) for n, *_ in layout.Policy._fields_} == {
        n: getattr(theirs, n) for n, *_ in layout.Policy._fields_
    }


def test_the_structs_are_those_of_the_engine() -> None:
    assert layout.check(library.load()) == ""


def test_another_version_of_the_engine_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    class Longer(ctypes.Structure):
        _fields_ = (*layout.Choice._fields_, ("more", ctypes.c_uint32))

    monkeypatch.setattr(layout, "STRUCTS", (*layout.STRUCTS[:3], Longer, *layout.STRUCTS[4:]))
    assert layout.check(library.load()) == "sizes differ: Longer"


@pytest.mark.parametrize(
    ("op", "size", "file_bytes", "state", "more", "expected"),
    [
        ("read", 64 * KIB, 10 * GIB, EMPTY, {}, "small"),
        ("read", MIB - 1, 10 * GIB, EMPTY, {}, "small"),
        ("read", MIB, 10 * GIB, EMPTY, {}, "size"),
        ("write", 512 * KIB - 1, GIB, EMPTY, {}, "small"),
        ("write", 512 * KIB, GIB, EMPTY, {}, "size"),
        # under pressure: smaller requests, but never the smallest
        ("read", 256 * KIB, 10 * GIB, FULL, {}, "pressure"),
        ("write", 256 * KIB, 10 * GIB, FULL, {}, "pressure"),
        ("read", 256 * KIB - 1, 10 * GIB, FULL, {}, "small"),
        ("read", 256 * KIB, 10 * GIB, FULL._replace(cached_bytes=int(LIMIT * 0.94)), {}, "small"),
        ("read", 256 * KIB, 10 * GIB, FULL._replace(cached_bytes=int(LIMIT * 0.95) + 1), {}, "pressure"),
        # what is read again stays, unless it would push out what others use
        ("read", 4 * MIB, GIB, EMPTY, {"reread_bytes": 4 * MIB}, "reread"),
        ("read", 4 * MIB, GIB, EMPTY, {"reread_bytes": 2 * MIB}, "size"),
        ("read", 4 * MIB, GIB, FULL_OF_JUNK, {"reread_bytes": 4 * MIB}, "reread"),
        ("read", 4 * MIB, GIB, FULL_OF_USED, {"reread_bytes": 4 * MIB}, "size"),
        ("read", 4 * MIB, 9 * GIB, EMPTY, {"reread_bytes": 4 * MIB}, "size"),
        ("read", 4 * MIB, GIB, FULL_OF_JUNK._replace(own_bytes=7 * GIB), {"reread_bytes": 4 * MIB}, "size"),
        ("write", 4 * MIB, GIB, EMPTY, {"reread_bytes": 4 * MIB}, "size"),
        ("read", 4 * MIB, GIB, EMPTY, {"reread_bytes": 4 * MIB, "settings": Policy(keep_reread=False)}, "size"),
        # a small file with room
        ("read", 4 * MIB, 64 * MIB, EMPTY, {}, "room"),
        ("read", 4 * MIB, 64 * MIB + 1, EMPTY, {}, "size"),
        ("read", 4 * MIB, 64 * MIB, EMPTY._replace(limit_bytes=100 * MIB), {}, "size"),
        ("read", 4 * MIB, 64 * MIB, EMPTY._replace(limit_bytes=100 * MIB), {"rest_bytes": 32 * MIB}, "room"),
        ("read", 4 * MIB, 64 * MIB, FULL, {}, "size"),
        ("write", 4 * MIB, 4 * MIB, EMPTY, {}, "size"),
        # what is safe comes before what is wished
        *(
            ("write", 4 * MIB, GIB, EMPTY, {"flags": (flag,), "settings": Policy(mode=mode)}, flag)
            for flag in ("unsupported", "append", "shared", "mapped")
            for mode in layout.MODES
        ),
        ("read", 4 * MIB, GIB, EMPTY, {"flags": ("append",)}, "size"),
        ("write", 4 * MIB, GIB, EMPTY, {"flags": ("caller_direct", "shared")}, "shared"),
        ("read", 4 * KIB, GIB, EMPTY, {"flags": ("caller_direct",)}, "caller"),
        ("read", 4 * KIB, GIB, EMPTY, {"settings": Policy(mode="direct")}, "size"),
        ("read", 4 * MIB, GIB, EMPTY, {"settings": Policy(mode="buffered")}, "off"),
    ],
)
def test_a_request_goes_its_way(
    op: str, size: int, file_bytes: int, state: Pressure, more: dict[str, Any], expected: str
) -> None:
    way = "direct" if expected in layout.DIRECT else "buffered"
    assert choose(op, size, file_bytes, state, **more) == Choice(way, expected)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"mode": "fast"}, "mode is auto or buffered or direct, not 'fast'"),
        ({"limit_share": 0.0}, "limit_share is above 0 and at most 1, not 0.0"),
        ({"direct_share": 1.5}, "direct_share is above 0"),
        ({"limit_share": float("nan")}, "limit_share is above 0"),
        ({"limit_share": "80%"}, "limit_share is above 0 and at most 1, not '80%'"),
        ({"read_direct_bytes": -1}, "read_direct_bytes is a number from 0"),
        ({"write_direct_bytes": 1.5}, "write_direct_bytes is a number from 0"),
        ({"refresh_ns": 1 << 70}, "refresh_ns is a number from 0"),
    ],
)
def test_a_bad_policy_is_refused_in_one_line(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        policy_of(wrong).struct()


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ValueError, match="no such setting of a policy: speed; there are mode, read_direct_bytes, "):
        policy_of({"speed": 9})
    with pytest.raises(ValueError, match="a policy is a Policy, a mode, or settings by name, not 3"):
        policy_of(3)  # type: ignore[arg-type]


def test_a_policy_may_be_told_in_many_ways() -> None:
    assert policy_of(None) == Policy()
    assert policy_of("direct") == Policy(mode="direct")
    assert policy_of({"mode": "buffered"}) == policy_of(Policy(mode="buffered"))


def test_the_engine_refuses_what_python_would(tmp_path: Any) -> None:
    engine = library.load()
    for wrong in ({"abi": 0}, {"mode": 3}, {"limit_share": 0.0}, {"direct_share": float("nan")}):
        made = Policy().struct()
        for name, value in wrong.items():
            setattr(made, name, value)
        assert engine.hy_open(str(tmp_path / "file").encode(), 0o102, 0o600, ctypes.byref(made)) is None
        assert ctypes.get_errno() == 22
    assert not (tmp_path / "file").exists()


def test_the_pressure_is_that_of_the_kernel() -> None:
    now = pressure()
    meminfo = dict(line.split(":") for line in open("/proc/meminfo"))  # noqa: SIM115
    assert now.memory_bytes == int(meminfo["MemTotal"].split()[0]) * 1024
    cap = min(now.memory_bytes, now.cgroup_limit_bytes or now.memory_bytes)
    assert now.limit_bytes == pytest.approx(0.80 * (cap - now.other_bytes), rel=0.001)
    assert now.active_bytes <= now.cached_bytes
