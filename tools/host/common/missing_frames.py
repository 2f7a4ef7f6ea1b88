"""Complete the places of waits whose Python stack was not walked. Pure.

Walking Python stacks at switches has a budget, which threads that switch often use up; long waits then lack frames too.
What a thread waits for tells its line: waits of one thread in the same call, with the same frames in the kernel and the
same innermost native frame, for the same file, object or lock are taken to be at the line of those with known frames.
A wait that began before the recording has no native frame, and seldom a known descriptor; what is known must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from whystall.tools.host.common.places import Place
from whystall.tools.host.common.timelines import Timeline, Wait

# Share of the known time in one such group that one place must have, to be taken for the others.
_CLEAR = 0.8
_Group = tuple[object, ...]


def complete_places(lines: Iterable[Timeline]) -> None:
    """Fill in the places of waits without Python frames, where other waits of the thread leave no doubt."""
    for line in lines:
        if not all(wait.place.python for wait in line.waits):
            _complete(line)


def _complete(line: Timeline) -> None:
    known: dict[_Group, Counter[Place]] = {}
    for wait in line.waits:
        if wait.place.python:
            for group in (_group(wait, object, native) for object in (True, False) for native in (True, False)):
                known.setdefault(group, Counter())[wait.place] += max(wait.end_ns - wait.start_ns, 1)
    clear = {group: place for group, times in known.items() if (place := _clear(times)) is not None}
    line.waits[:] = [_completed(wait, clear) for wait in line.waits]
    line.short[:] = [short._replace(wait=_completed(short.wait, clear)) for short in line.short]


def _completed(wait: Wait, clear: dict[_Group, Place]) -> Wait:
    if wait.place.python:
        return wait
    began_within = not wait.seeded
    place = clear.get(_group(wait, began_within or bool(wait.object), began_within or bool(wait.place.native)))
    return wait if place is None else wait._replace(place=place)


def _group(wait: Wait, object: bool, native: bool) -> _Group:
    """What is compared: the descriptor if `object`, the innermost native frame if `native`."""
    name, frame = wait.object if object else None, wait.place.native[:1] if native else None
    return (wait.syscall, wait.path, name, wait.lock, wait.asked_ns >= 0, wait.kernel, frame)


def _clear(times: Counter[Place]) -> Place | None:
    place, took = times.most_common(1)[0]
    return place if took >= _CLEAR * times.total() else None
