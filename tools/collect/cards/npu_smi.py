"""Read the table that ``npu-smi info`` prints, of Ascend NPUs. Pure.

Two lines per chip; columns differ between versions, and are found by their headings::

    | NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
    | Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
    +===========================+===============+====================================================+
    | 0     Ascend910           | OK            | 178.9       36                0    / 0             |
    | 0     0                   | 0000:9D:00.0  | 0           0    / 0          3412 / 65536         |
    | 0     Ascend910           | Warning       | -           36                0    / 0             |
    | 1     1                   | 0000:9F:00.0  | 0           0    / 0          3189 / 65536         |
"""

from __future__ import annotations

import re

from whystall.tools.collect.cards.card import MOST_CARDS, Card, number
from whystall.tools.contract.text import clean

MARK = re.compile(r"^\|\s*npu-smi\s", re.MULTILINE)
_FIRST = re.compile(
    r"\|\s*(?P<npu>\d{1,4})\s+(?P<name>\S{1,40})\s*\|\s*(?P<health>[A-Za-z][A-Za-z ]{0,30}?)\s*\|"
    r"\s*(?P<power>[\d.]{1,9}|-|NA)\s+(?P<temperature>\d{1,4}|-|NA)\b"
)
_SECOND = re.compile(
    r"\|\s*(?P<chip>\d{1,4})(?:\s+\w{1,8})?\s*\|\s*(?P<bus>[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|NA)\s*\|"
    r"\s*(?P<busy>\d{1,3}|-|NA)\s+(?P<use>[^|]{1,80})"
)
_USE = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")
_MIB = 1 << 20
_LINES = 20_000


def parse(text: str) -> list[Card]:
    """Return the chips in `text`, at most `MOST_CARDS`; lines that are cut off or damaged are left out."""
    cards: list[Card] = []
    first: re.Match[str] | None = None
    for line in text.split("\n", _LINES)[:_LINES]:
        if "Process" in line and "id" in line:
            break  # the table of processes follows
        if (head := _FIRST.match(line)) is not None:
            first = head
        elif first is not None and (second := _SECOND.match(line)) is not None:
            cards.append(_card(first, second))
            first = None
            if len(cards) == MOST_CARDS:
                break
    return cards


def _card(first: re.Match[str], second: re.Match[str]) -> Card:
    # Memory-Usage, then HBM-Usage where there is HBM; without HBM a version prints one pair, or 0 / 0 twice
    pairs = [(int(used), int(total)) for used, total in _USE.findall(second["use"]) if int(total)]
    used, total = pairs[-1] if pairs else (-1, -1)
    return Card(
        vendor="ascend",
        number=int(first["npu"]),
        chip=int(second["chip"]),
        device="" if second["bus"] == "NA" else second["bus"].lower(),
        model=clean(first["name"], 64),
        health=clean(first["health"].lower(), 32),
        temperature_c=number(first["temperature"]),
        power_mw=number(first["power"], 1000),
        busy_pct=number(second["busy"]),
        memory_used_bytes=used * _MIB if total > 0 else -1,
        memory_bytes=total * _MIB if total > 0 else -1,
    )
