"""Read output of npu-smi, amd-smi and rocm-smi, of files or of the programs on this host, as ``card_state``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from whystall.tools.collect.cards import amd_smi, npu_smi
from whystall.tools.collect.cards.card import MOST_CARDS, Card
from whystall.tools.collect.tables import CARD_STATE, filled
from whystall.tools.contract.commands import argv
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.foreign_json import inert
from whystall.tools.contract.result import BlindSpot
from whystall.tools.contract.text import clean
from whystall.tools.files.input import DAMAGED, opened
from whystall.tools.recording.collector import Capture
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target

COLLECTOR, FILE = "card_state", "file"
_MOST_BYTES, _MOST_FILES = 8 << 20, 64
_ANSWER_S = 5.0
_COMMANDS = {"npu-smi": ("npu-smi.info",), "amd-smi": ("amd-smi.metric", "amd-smi.static"), "rocm-smi": ("rocm-smi",)}
_REMEDY = "give the output of `npu-smi info`, `amd-smi metric --json`, `amd-smi static --json` or `rocm-smi --json`"


def cards_in(data: bytes) -> list[Card]:
    """Return the accelerators that `data` states, each once; empty if it is none of the known forms, or damaged."""
    text = data[:_MOST_BYTES].decode("utf-8", "replace")
    if npu_smi.MARK.search(text):
        return npu_smi.parse(text)
    begin = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if begin < 0:
        return []
    try:  # programs print warnings before their JSON
        content, _ = json.JSONDecoder().raw_decode(text[begin:])
        return amd_smi.parse(inert(content))
    except (ValueError, RecursionError):
        return []


def merged(cards: Iterable[Card]) -> list[Card]:
    """Return the cards, with what several outputs state of one (``metric`` and ``static``) joined."""
    found: dict[tuple[str, int, int], Card] = {}
    for card in cards:
        key = (card.vendor, card.number, card.chip)
        if key in found:
            found[key] = found[key].filled(card)
        elif len(found) < MOST_CARDS:
            found[key] = card
    return list(found.values())


def recording_of_cards(path: Path) -> Recording:
    """Return the state of accelerators in the file `path`, or in the files of that directory, as a recording.

    Raises `ToolError`: io_error, bad_trace if no file states one. A file that states none beside others that do is a
    blind spot.
    """
    try:
        files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
        cards: list[Card] = []
        unread = [one.name for one in files[_MOST_FILES:]]
        for one in files[:_MOST_FILES]:
            with opened(one) as file:
                try:
                    data = file.read(_MOST_BYTES + 1)
                except DAMAGED:
                    data = b""
            found = cards_in(data) if len(data) <= _MOST_BYTES else []
            cards += found
            unread += [] if found else [one.name]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {why}", "check path and permission") from None
    if not cards:
        raise ToolError(ErrorCode.BAD_TRACE, f"{path.name}: it states no accelerator", _REMEDY)
    capture = _capture(cards, [FILE], [("gpus_unread", clean(", ".join(unread[:4])))] if unread else [])
    entry = CollectorManifest(
        engine=FILE,
        hooks=capture.hooks,
        seen=capture.seen,
        kept=capture.kept,
        proven=True,
        not_seen=[BlindSpot(code=code, detail=detail) for code, detail in capture.not_seen],
    )
    manifest = Manifest(
        id=clean(path.name),
        host="",
        kernel="",
        machine="",
        cpus=1,
        target=Target(everything=True),
        started="1970-01-01T00:00:00.000Z",
        start_ns=0,
        window_ns=0,
        requested_ns=0,
        collectors={COLLECTOR: entry},
    )
    return Recording.in_memory(manifest, {f"{COLLECTOR}.{name}": frame for name, frame in capture.tables.items()})


def live(programs: Iterable[str]) -> Capture:
    """Return what those of `programs` print; one that fails, or takes longer than `_ANSWER_S`, is a blind spot."""
    cards: list[Card] = []
    hooks, spots = [], []
    for program in programs:
        for name in _COMMANDS[program]:
            try:
                done = subprocess.run(
                    argv(name), stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                spots.append(("gpus_unread", f"{program}: {type(error).__name__}"))
                continue
            found = cards_in(done.stdout)
            cards += found
            hooks.append(program)
            if not found:
                spots.append(("gpus_unread", clean(f"{program}: exit status {done.returncode}")))
    return _capture(cards, hooks, spots)


def _capture(cards: list[Card], hooks: list[str], spots: list[tuple[str, str]]) -> Capture:
    tables = filled(CARD_STATE, cards=[one.row() for one in merged(cards)])
    count = tables["cards"].height
    return Capture(
        tables=tables,
        hooks=list(dict.fromkeys(hooks)),
        seen=count,
        kept=count,
        lost=0,
        proven=count > 0,
        not_seen=spots,
    )
