"""Names of kernels for narrow frames: first what tells them apart.

``void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>(...)`` begins like hundreds of
others. Return type, namespaces and parameters are left out, and of kernels of one template the arguments come first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NOISE = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\{anonymous\}|[A-Za-z_]\w*)::")
_TEMPLATE = re.compile(r"([A-Za-z_][\w~]*)<(.*)>", re.DOTALL)
_EDGE = re.compile(r"[,<\s]\s*")
_MARKERS = ("GPU:", "[GPU_Kernel]")
_LONGEST = 2000


def kernel_label(name: str) -> str:
    """Return `name` without marker, return type, namespaces and parameters; unchanged if it is no C++ signature."""
    for marker in _MARKERS:
        name = name.removeprefix(marker)
    if len(name) > _LONGEST:
        return name
    plain = _NOISE.sub("", name.removeprefix("void ").replace("(anonymous namespace)::", ""))
    depth = 0
    for at, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and at:
            plain = plain[:at]
            break
    return plain.strip() or name


def kernel_labels(names: Sequence[str]) -> list[str]:
    """Return a label per name, of all kernels of one picture: those of one template begin with the arguments in which
    they differ."""
    plain = [kernel_label(name) for name in names]
    parts = [_TEMPLATE.fullmatch(label) for label in plain]
    of_base: dict[str, set[str]] = {}
    for part in parts:
        if part is not None:
            of_base.setdefault(part[1], set()).add(part[2])
    found = []
    for label, part in zip(plain, parts, strict=True):
        if part is None or len(of_base[part[1]]) < 2:
            found.append(label)
            continue
        rest = part[2][_shared(of_base[part[1]]) :]
        found.append(f"{rest} · {part[1]}" if rest else label)
    return found


def _shared(texts: set[str]) -> int:
    """Return the length of the common beginning of `texts`, up to the end of an argument."""
    first, last = min(texts), max(texts)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    edges = [match.end() for match in _EDGE.finditer(first) if match.end() <= same]
    return edges[-1] if edges else 0
