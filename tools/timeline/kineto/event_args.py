"""The arguments of a Kineto event about a collective, read without trust.

Values come as numbers or as text, and from a damaged or hostile file as anything. Those of a kernel since 2024:

    "args": {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1024, "Out msg nelems": 1024,
             "Group size": 8, "Process Group Name": "0", "Process Group Description": "default_pg", "Seq": 12}
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from whystall.tools.contract.text import clean
from whystall.tools.timeline.kineto.groups import Mentioned
from whystall.tools.timeline.profile_reading.element_size import element_size
from whystall.tools.timeline.profile_reading.groups import ELEMENT_LIMIT, RANK_LIMIT, number, text

_NOTHING = msgspec.Raw()
_REMEMBERED = 4096


class CollectiveArgs(msgspec.Struct, gc=False):
    """Arguments about collectives. Their types are not checked: an event with invalid ones is still an activity."""

    collective: Any = msgspec.field(name="Collective name", default="")
    external: Any = msgspec.field(name="External id", default=-1)
    dtype: Any = ""
    elements_in: Any = msgspec.field(name="In msg nelems", default=-1)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=-1)
    size: Any = msgspec.field(name="Group size", default=-1)
    group: Any = msgspec.field(name="Process Group Name", default="")
    description: Any = msgspec.field(name="Process Group Description", default="")
    ranks: Any = msgspec.field(name="Process Group Ranks", default="")
    first: Any = msgspec.field(name="Global rank start", default=-1)
    stride: Any = msgspec.field(name="Global rank stride", default=-1)
    seq: Any = msgspec.field(name="Seq", default=-1)
    source: Any = msgspec.field(name="Src Rank", default=-1)
    target: Any = msgspec.field(name="Dst Rank", default=-1)
    # recorded for every operator with shapes on, and read for few
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)


class Place(NamedTuple):
    """When and where an event was; columns as `profile_reading.build.RAW`."""

    start_ns: int
    end_ns: int
    pid: int
    tid: int
    device: int
    stream: int
    correlation: int


class Part(NamedTuple):
    """An event that is part of a collective. `elements`: of the larger of input and output, -1 unknown; `peer`: of a
    point-to-point operation, a global rank for NCCL, a rank of the group for gloo; `split`: an all_to_all with a size
    per rank."""

    place: Place
    name: str
    external: int
    collective: str
    dtype: str
    elements: int
    mentioned: Mentioned
    seq: int
    peer: int
    split: bool = False


_NO_GROUP = Mentioned()


def described(place: Place, name: str, args: CollectiveArgs) -> tuple[Part, bool]:
    """Return the part described by named arguments, as of NCCL's kernels; and whether one of them was invalid."""
    texts = (name, args.collective, args.dtype, args.group, args.description, args.ranks)
    sizes = (args.size, args.first, args.stride)
    try:
        shown, collective, dtype, mentioned, odd = _read(*texts, *sizes)
    except TypeError:  # a list or an object is not hashable
        shown, collective, dtype, mentioned, odd = _read.__wrapped__(*texts, *sizes)
    before, after, seq = number(args.elements_in), number(args.elements_out), number(args.seq)
    elements = max(before, after)
    odd |= (before < 0 and _odd(args.elements_in)) or (after < 0 and _odd(args.elements_out))
    odd |= elements > ELEMENT_LIMIT or (seq < 0 and _odd(args.seq))
    peer = max(number(args.source, 2**31 - 1), number(args.target, 2**31 - 1))
    part = Part(
        place,
        shown,
        number(args.external),
        collective,
        dtype,
        elements if elements <= ELEMENT_LIMIT else -1,
        mentioned,
        seq,
        peer,
    )
    return part, odd


@lru_cache(_REMEMBERED)
def _read(
    name: str,
    collective: object,
    dtype: object,
    group: object,
    description: object,
    ranks: object,
    size: object,
    first: object,
    stride: object,
) -> tuple[str, str, str, Mentioned, bool]:
    """Return the repeated fields of collectives: escaped name, operation, type, group; and whether one was invalid."""
    given = (collective, dtype, group)
    texts = [text(value) for value in given]
    odd = any(value not in ("", None) and not found for value, found in zip(given, texts, strict=True))
    numbers = [number(value, RANK_LIMIT) for value in (size, first, stride)]
    mentioned = Mentioned(texts[2], text(description), ranks if isinstance(ranks, str) else "", *numbers)
    return clean(name), texts[0], texts[1], mentioned, odd


class Shaped(NamedTuple):
    """An event described by its tensors, not decoded yet: arguments as JSON, copied out of the file's text."""

    place: Place
    name: str
    external: object
    dims: bytes
    types: bytes
    inputs: bytes


def unread(place: Place, name: str, args: CollectiveArgs) -> Shaped:
    """Keep the event for `shaped`: most such events are not used."""
    return Shaped(place, name, args.external, bytes(args.dims), bytes(args.types), bytes(args.inputs))


def shaped(event: Shaped) -> tuple[Part, bool]:
    """Return the part described by its tensors, as gloo's ranges and the operators before them have them; and whether
    they were invalid. The type of tensors in a list is not recorded."""
    try:
        dims, types, inputs = (msgspec.json.decode(part) if part else [] for part in event[3:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        dims, types, inputs = None, [], []
    counts = [_elements(one, 0) for one in dims] if isinstance(dims, list) else [None]
    found = [count for count in counts if count is not None]
    dtype = next((text(one) for one in types if one), "") if isinstance(types, list) else ""
    peer = number(inputs[2], 2**31 - 1) if isinstance(inputs, list) and len(inputs) > 2 else -1
    elements = max(found, default=0) or -1
    # c10d::alltoall_base_(output, input, group, output sizes, input sizes)
    split = isinstance(inputs, list) and any(one not in ("", "[]") for one in inputs[3:5])
    name, external = clean(event.name), number(event.external)
    return Part(event.place, name, external, "", dtype, elements, _NO_GROUP, -1, peer, split), None in counts


def bytes_of(elements: int, dtype: str) -> int:
    """Return the larger; -1 when either is unknown."""
    size = element_size(dtype)
    return elements * size if elements >= 0 and size > 0 else -1


def _odd(value: object) -> bool:
    """Return whether it should be a number and is none; -1 stands for an unknown one."""
    return value not in (-1, "-1", "", None) and number(value) < 0


def _elements(dims: object, depth: int) -> int | None:
    """Return the number of elements of a tensor's sizes, or of a list of such; None when they are none."""
    if not isinstance(dims, list) or depth > 3:
        return None
    if all(type(size) is int for size in dims):
        total = 1
        for size in dims:
            total *= size
            if not 0 <= total <= ELEMENT_LIMIT:
                return None
        # [] is an input that is no tensor
        return total if dims else 0
    parts = [_elements(one, depth + 1) for one in dims]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
