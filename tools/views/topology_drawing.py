"""Draw the hosts of a cluster: in full (NUMA nodes, GPUs, NICs), or small, a square for each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.tools.views.figure import Figure
from whystall.tools.views.page import escape

MOST_FULL = 16
"""Hosts that are drawn in full at once; of more each is small."""
_WIDTH = 1180
_GPU = (82, 46)
_NIC = (82, 22)
_GAP = 6
_PER_ROW = 4
_CELL = 17
_LETTERS = 13


@dataclass(frozen=True)
class Gpu:
    """A GPU. `lines`: its ranks; `mark`: a letter, or empty; `about`: all that is known, for a tooltip."""

    name: str
    lines: tuple[str, ...]
    mark: str
    about: str


@dataclass(frozen=True)
class Node:
    """A NUMA node: its label, GPUs, and NICs with a mark."""

    label: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Gpu, ...]


@dataclass(frozen=True)
class HostView:
    """A host. `note`: a line below its name; `mark`: of the host itself."""

    name: str
    note: str
    mark: str
    nodes: tuple[Node, ...]


def figure(hosts: Sequence[HostView], words: Mapping[str, str], *, full: bool | None = None) -> Figure:
    """Return the drawing of `hosts`, in full if they are few. `words`: reserved for labels of the caller."""
    large = len(hosts) <= MOST_FULL if full is None else full
    content, height, x, y, high = [], 0.0, 0.0, 0.0, 0.0
    for host in hosts:
        drawn, width, tall = _full(host) if large else _small(host)
        if x and x + width > _WIDTH:
            x, y, high = 0.0, y + high + 10, 0.0
        content.append(f'<g transform="translate({x:.0f} {y:.0f})">{drawn}</g>')
        x, high = x + width + 10, max(high, tall)
        height = y + high
    return Figure(
        "topology", f'<g transform="translate(8 4)">{"".join(content)}</g>', _WIDTH + 16, height + 10, 8, 4, (0, 0)
    )


def _full(host: HostView) -> tuple[str, float, float]:
    boxes, x, tall = [], 8.0, 0.0
    for node in host.nodes:
        drawn, width, high = _node(node)
        boxes.append(f'<g transform="translate({x:.0f} 40)">{drawn}</g>')
        x, tall = x + width + 8, max(tall, high)
    width = max(x, 180.0)
    fits = int(width / 6.4)
    look = "host marked" if host.mark else "host"
    name = f"{host.mark} {host.name}" if host.mark else host.name
    return (
        f'<rect class="{look}" width="{width:.0f}" height="{tall + 48:.0f}" rx="6"/>'
        f'<text class="name" x="10" y="18">{escape(_cut(name, fits))}<title>{escape(host.name)}</title></text>'
        f'<text class="label" x="10" y="33">{escape(_cut(host.note, fits))}</text>{"".join(boxes)}',
        width,
        tall + 48,
    )


def _node(node: Node) -> tuple[str, float, float]:
    columns = max(1, min(_PER_ROW, max(len(node.gpus), len(node.nics))))
    width = 12 + columns * (_GPU[0] + _GAP) - _GAP
    drawn, y = [], 22.0
    for devices, size, look in ((node.gpus, _GPU, "gpu"), (node.nics, _NIC, "nic")):
        for at, one in enumerate(devices):
            x = 6 + (at % columns) * (size[0] + _GAP)
            drawn.append(_device(one, look, x, y + at // columns * (size[1] + _GAP), size))
        y += -(-len(devices) // columns) * (size[1] + _GAP)
    return (
        f'<rect class="node" width="{width}" height="{y:.0f}" rx="4"/>'
        f'<text class="label" x="6" y="15">{escape(node.label)}</text>{"".join(drawn)}',
        float(width),
        y,
    )


def _device(one: Gpu, look: str, x: float, y: float, size: tuple[int, int]) -> str:
    name = f"{one.mark} {one.name}" if one.mark else one.name
    on = "on_mark" if one.mark else "on"
    lines = "".join(
        f'<text class="{on}" x="6" y="{28 + 12 * at}">{escape(_cut(line, _LETTERS))}</text>'
        for at, line in enumerate(one.lines[:2])
    )
    return (
        f'<g transform="translate({x:.0f} {y:.0f})"><title>{escape(one.about)}</title>'
        f'<rect class="{look}{" marked" if one.mark else ""}" width="{size[0]}" height="{size[1]}" rx="3"/>'
        f'<text class="{on} strong" x="6" y="15">{escape(_cut(name, 11))}</text>{lines if look == "gpu" else ""}</g>'
    )


def _small(host: HostView) -> tuple[str, float, float]:
    gpus = [one for node in host.nodes for one in node.gpus]
    columns = 8
    width = columns * _CELL
    rows = max(1, -(-len(gpus) // columns))
    cells = []
    for at, one in enumerate(gpus):
        x, y = at % columns * _CELL, 18 + at // columns * _CELL
        letter = f'<text class="letter" x="{x + 7.5}" y="{y + 11.5}">{escape(one.mark)}</text>' if one.mark else ""
        cells.append(
            f'<g><title>{escape(f"{host.name} {one.about}")}</title><rect class="gpu{" marked" if one.mark else ""}" '
            f'x="{x}" y="{y}" width="15" height="15" rx="2"/>{letter}</g>'
        )
    # NICs are not drawn: the host stands for them
    mark = host.mark or next((one.mark for node in host.nodes for one in node.nics if one.mark), "")
    name = f"{mark} {host.name}" if mark else host.name
    look = "name found" if mark else "name"
    text = f'<text class="{look}" x="0" y="13">{escape(_cut(name, 17))}<title>{escape(host.name)}</title></text>'
    return text + "".join(cells), float(width), 20.0 + rows * _CELL


def _cut(text: str, most: int) -> str:
    """Return `text` shortened in its middle: names of hosts differ at their ends."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"
