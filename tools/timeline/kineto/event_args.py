"""What an event of a Kineto trace says about a collective: its arguments, read without trust.

Values come as numbers or as text, and from a damaged or hostile file as anything.
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


class Told(msgspec.Struct, gc=False):
    """Arguments about collectives. Their types are not checked: an event with odd ones is still an activity."""

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
    # of every operator where shapes are recorded, and needed of few
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)


class Place(NamedTuple):
    """When and where an event was; as `profile_build.RAW`."""

    start_ns: int
    end_ns: int
    pid: int
    tid: int
    device: int
    stream: int
    correlation: int


class Part(NamedTuple):
    """An event that is part of a collective. `elements`: of the larger of what goes in and comes out, -1 unknown;
    `peer`: of a point-to-point operation, a global rank in what NCCL is told, a rank of the group in what gloo is;
    `split`: an all_to_all was given a size for each rank.
    """

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


def described(place: Place, name: str, told: Told) -> tuple[Part, bool]:
    """From the arguments named for it, as NCCL's kernels have them; and whether one of them was odd."""
    texts = (name, told.collective, told.dtype, told.group, told.description, told.ranks)
    sizes = (told.size, told.first, told.stride)
    try:
        shown, collective, dtype, mentioned, odd = _read(*texts, *sizes)
    except TypeError:  # a list or an object cannot be remembered
        shown, collective, dtype, mentioned, odd = _read.__wrapped__(*texts, *sizes)
    before, after, seq = number(told.elements_in), number(told.elements_out), number(told.seq)
    elements = max(before, after)
    odd |= (before < 0 and _odd(told.elements_in)) or (after < 0 and _odd(told.elements_out))
    odd |= elements > ELEMENT_LIMIT or (seq < 0 and _odd(told.seq))
    peer = max(number(told.source, 2**31 - 1), number(told.target, 2**31 - 1))
    part = Part(
        place,
        shown,
        number(told.external),
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
    """Return what few of many collectives differ in: inert name, operation, type, group; and whether one was odd."""
    given = (collective, dtype, group)
    texts = [text(value) for value in given]
    odd = any(value not in ("", None) and not found for value, found in zip(given, texts, strict=True))
    numbers = [number(value, RANK_LIMIT) for value in (size, first, stride)]
    mentioned = Mentioned(texts[2], text(description), ranks if isinstance(ranks, str) else "", *numbers)
    return clean(name), texts[0], texts[1], mentioned, odd


class Shaped(NamedTuple):
    """An event told by its tensors, not read yet: arguments as JSON, apart from the text of the file."""

    place: Place
    name: str
    external: object
    dims: bytes
    types: bytes
    inputs: bytes


def unread(place: Place, name: str, told: Told) -> Shaped:
    """Keep for `shaped`: of most such events nothing is wanted."""
    return Shaped(place, name, told.external, bytes(told.dims), bytes(told.types), bytes(told.inputs))


def shaped(event: Shaped) -> tuple[Part, bool]:
    """From the tensors it was given, as gloo's ranges and the operators before them have them; and whether they were
    odd. The type of tensors in a list is not told."""
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
    """-1 when either is unknown."""
    size = element_size(dtype)
    return elements * size if elements >= 0 and size > 0 else -1


def _odd(value: object) -> bool:
    """Return whether it should be a number and is none. -1 is how an unknown one is written."""
    return value not in (-1, "-1", "", None) and number(value) < 0


def _elements(dims: object, depth: int) -> int | None:
    """Of a tensor's sizes, or of a list of such; None when they are none."""
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
