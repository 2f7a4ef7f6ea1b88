"""The generated mirrors of the shared records, compared with the type information (BTF) of the built objects."""

from __future__ import annotations

import ctypes as ct

import pytest

from whystall.bpf import build, layout
from whystall.bpf.btf import Btf
from whystall.bpf.build import KINDS, MACHINES, object_path
from whystall.bpf.layout_generator import class_name

GENERATED = "whystall.bpf.layout_generated"
MIRRORS = {mirror.__name__: mirror for mirror in ct.Structure.__subclasses__() if mirror.__module__ == GENERATED}


def test_the_generated_module_is_current() -> None:
    assert build.layout() == build.LAYOUT.read_text()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_mirror_agrees_with_the_object(machine: str, kind: str) -> None:
    structs = {class_name(name): found for name, found in Btf(object_path(machine, kind)).structs().items()}
    shared = MIRRORS.keys() & structs.keys()
    assert len(shared) >= {"trace": 3, "functions": 4}.get(kind, 30)
    for name in shared:
        mirror, found = MIRRORS[name], structs[name]
        assert ct.sizeof(mirror) == found.size
        offsets = {field[0]: getattr(mirror, field[0]).offset for field in mirror._fields_}
        assert offsets == {member.name: member.offset for member in found.members}


def test_no_mirror_has_hidden_padding() -> None:
    for mirror in MIRRORS.values():
        assert layout.unpacker(mirror).size == ct.sizeof(mirror)


def test_enums_become_numbers_or_names() -> None:
    assert (layout.RECORD_SEEDED, layout.RECORD_IN_CALL, layout.ROW_WRITES, layout.NO_SYSCALL) == (1, 128, 512, -1)
    assert layout.BLOCK_OPS == ("read", "write", "sync_write", "flush", "discard", "other")
    assert (layout.TRACE_TYPES[0], layout.TRACE_FLAGS[0]) == ("switch", "preempted")
    assert len(layout.OFF_CLASSES) == layout.OFF_CLASS_COUNT
    assert layout.LOSSES[-1] == "compat_skipped"


def test_slots_cover_every_latency_without_gap_or_overlap() -> None:
    low, high = layout.slot_bounds(0)
    assert low == 0
    for slot in range(1, 480):
        next_low, next_high = layout.slot_bounds(slot)
        assert next_low == high
        assert next_high > next_low
        assert slot < 16 or (next_high - next_low) / next_low <= 0.125
        low, high = next_low, next_high
    assert high > 1 << 60
