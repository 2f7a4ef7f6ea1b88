"""Hash names before a recording leaves its host."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import string

import polars as pl

from whystall.tools.recording.store import Recording

# text: the new name of a renamed thread
_NAMES = frozenset({"comm", "waker_comm", "cgroup", "device", "text", "host"})
# Words for the purpose of a group of ranks. They stay: they show which ranks do the same work, and identify no one.
_PURPOSES = re.compile(
    r"(?:all|context|cp|data|default|dp|embedding|ep|expert|expt|first|fsdp|global|gloo|group|hybrid|inter|"
    r"intra|last|local|mesh|model|mp|nccl|parallel|pg|pipeline|position|pp|process|rank|ranks|replicate|"
    r"sequence|shard|sp|tensor|tp|undefined|with|without|world|zero|[\W\d_])*",
    re.IGNORECASE,
)
# Sampled frames of these kinds name kernel functions, framework operators or device kernels, not private code.
_PUBLIC_FRAMES = ("kernel", "operator", "launch", "device", "idle")
# A user frame with its line: save (/srv/train.py:212)
_WITH_LINE = re.compile(r"(.+) \((.+):(\d+)\)")
_KEY_BYTES = 16


def redact(recording: Recording) -> Recording:
    """Return a copy in which paths, command names, cgroups, containers, pods, devices, host names, user frames and
    names of groups of ranks are hashes. Names of a group's purpose (``default_pg``, ``TENSOR_MODEL_PARALLEL_GROUP``),
    kernel functions, system calls, operators and line numbers stay.

    Tools find the same in the copy: equal names stay equal, and each component of a path is hashed by itself, digits
    into digits, so that directories and numbered series stay recognisable. The key is random and discarded, so that
    names cannot be found by hashing candidates.
    """
    key = secrets.token_bytes(_KEY_BYTES)
    tables = {name: _frame(frame, key) for name, frame in recording.tables().items()}
    manifest = recording.manifest.model_copy(deep=True)
    manifest.redacted = True
    manifest.host = _hash(manifest.host, key)
    if manifest.collectors.keys() & {"ranks", "ranks_before"}:  # named after the directory of the traces
        manifest.id = _hash(manifest.id, key)
    target = manifest.target
    manifest.target = target.model_copy(
        update={
            "comm": _hash(target.comm, key) if target.comm else None,
            "cgroup": _path(target.cgroup, key) if target.cgroup else None,
            "container": _hash(target.container, key) if target.container else None,
            "pod": _path(target.pod, key) if target.pod else None,
        }
    )
    manifest.oom_killed = manifest.oom_killed.partition(" (")[0]  # the pid alone
    for container in manifest.containers:
        container.id = _hash(container.id, key) if container.id else None
        container.pod = _path(container.pod, key) if container.pod else None
        container.pod_uid = _hash(container.pod_uid, key) if container.pod_uid else None
    for entry in manifest.collectors.values():
        entry.why = ""
        entry.not_seen = [spot.model_copy(update={"detail": ""}) for spot in entry.not_seen]
    return Recording.in_memory(manifest, tables)


def _frame(frame: pl.DataFrame, key: bytes) -> pl.DataFrame:
    columns = []
    for name in frame.columns:
        if frame.schema[name] != pl.String:
            continue
        if name in ("path", "cgroup", "limit_cgroup", "directory"):
            columns.append(_mapped(frame[name], lambda text: _path(text, key)))
        elif name in _NAMES:
            columns.append(_mapped(frame[name], lambda text: _hash(text, key)))
        elif name in ("group", "description") or (name == "name" and "group" in frame.columns):
            columns.append(_mapped(frame[name], lambda text: _group(text, key)))
    if {"name", "file", "kind"} <= set(frame.columns):  # the frames of stack samples
        private = ~pl.col("kind").is_in(_PUBLIC_FRAMES)
        renamed = {
            "name": _mapped(frame["name"], lambda text: _user_frame(text, key)),
            "file": _mapped(frame["file"], lambda text: _path(text, key)),
        }
        changed = frame.select(
            pl.when(private).then(new).otherwise(pl.col(name)).alias(name) for name, new in renamed.items()
        )
        columns += changed.get_columns()
    if "frames" in frame.columns:  # stacks: user frames may name private code
        hashed = [
            list(frames) if kernel else [_user_frame(f, key) for f in frames]
            for frames, kernel in zip(frame["frames"].to_list(), frame["kernel"].to_list(), strict=True)
        ]
        columns.append(pl.Series("frames", hashed, dtype=frame.schema["frames"]))
    return frame.with_columns(columns)


def _mapped(series: pl.Series, change: object) -> pl.Series:
    known = {text: change(text) for text in series.unique().to_list() if text}  # type: ignore[operator]
    return pl.Series(series.name, [known.get(t, t) for t in series.to_list()], dtype=series.dtype)


def _path(path: str, key: bytes) -> str:
    return os.sep.join(_leaf(part, key) if part else "" for part in path.split(os.sep))


def _leaf(name: str, key: bytes) -> str:
    """Hash runs of digits and of other characters separately: a series of files stays one (see `path_pattern`)."""
    runs = re.findall(r"[0-9]+|[^0-9]+", name)
    return "".join(_digits(run, key) if run[0] in string.digits else _hash(run, key) for run in runs)


def _group(text: str, key: bytes) -> str:
    """Hash a group's name, or its key (name, a bar, the numbers of its ranks)."""
    name, bar, ranks = text.partition("|")
    return (name if _PURPOSES.fullmatch(name) else _hash(name, key)) + bar + ranks


def _user_frame(frame: str, key: bytes) -> str:
    """Hash a frame; an unnamed one (``[...]``) and one with file and line keep their form."""
    if place := _WITH_LINE.fullmatch(frame):
        name, file, line = place.groups()
        return f"{_hash(name, key)} ({_path(file, key)}:{line})"
    hashed = _hash(frame, key)
    return f"[{hashed}]" if frame.startswith("[") else hashed


def _digits(text: str, key: bytes) -> str:
    return str(int.from_bytes(hashlib.blake2b(text.encode(), key=key, digest_size=6).digest(), "big"))


def _hash(text: str, key: bytes) -> str:
    """Return eight letters; no digits, so that a hash never looks like a number in a series."""
    digest = hashlib.blake2b(text.encode(), key=key, digest_size=8).digest()
    return "".join(chr(ord("a") + byte % 26) for byte in digest)
