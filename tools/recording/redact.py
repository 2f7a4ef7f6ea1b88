"""Hash names before a recording leaves its host."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import secrets
import string
from functools import partial

import polars as pl

from whystall.tools.recording import privacy
from whystall.tools.recording.privacy import Privacy
from whystall.tools.recording.store import Recording

# A user frame with its line: save (/srv/train.py:212)
_WITH_LINE = re.compile(r"(.+) \((.+):(\d+)\)")
_KEY_BYTES = 16


def redact(recording: Recording) -> Recording:
    """Return a copy in which paths, command names, cgroups, containers, pods, devices, host names, addresses, user
    frames, objects with a name and names of groups of ranks are hashed (`privacy.COLUMNS`). Names of a group's purpose
    (``default_pg``, ``TENSOR_MODEL_PARALLEL_GROUP``), kernel functions, system calls, operators, code of the standard
    library and of well-known packages, port and line numbers stay.

    Tools find the same in the copy: equal names stay equal, and each component of a path is hashed by itself, digits
    into digits, so that directories and numbered series stay recognisable. The key is random and discarded, so that
    names cannot be found by hashing candidates.
    """
    key = secrets.token_bytes(_KEY_BYTES)
    tables = {name: _frame(name, frame, key) for name, frame in recording.tables().items()}
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
    manifest.left_out = dict.fromkeys(manifest.left_out, "")
    for entry in manifest.collectors.values():
        entry.why = ""
        entry.hooks = [_path(hook, key) if hook.startswith("/") and hook != "/proc" else hook for hook in entry.hooks]
        entry.not_seen = [spot.model_copy(update={"detail": ""}) for spot in entry.not_seen]
    return Recording.in_memory(manifest, tables)


def _frame(table: str, frame: pl.DataFrame, key: bytes) -> pl.DataFrame:
    rules = {
        Privacy.NAME: _hash,
        Privacy.PATH: _path,
        Privacy.OBJECT: _object,
        Privacy.ADDRESS: _address,
        Privacy.INTERRUPT: _interrupt,
        Privacy.FILESYSTEM: _filesystem,
        Privacy.GROUP: _group,
        Privacy.TEXT: _removed,
    }
    columns = []
    for name, dtype in frame.schema.items():
        rule = privacy.of_column(table, name)
        if rule is Privacy.PUBLIC or dtype not in (pl.String, pl.List(pl.String)):
            continue
        if rule is Privacy.CODE:
            columns += _code(name, frame, key)
        elif dtype == pl.String:
            # one that nobody has classified may be anything
            columns.append(_mapped(frame[name], partial(rules.get(rule or Privacy.NAME, _hash), key=key)))
    return frame.with_columns(columns)


def _code(column: str, frame: pl.DataFrame, key: bytes) -> list[pl.Series]:
    """Return a column of frames: lists, of the kernel or of a user's stack, or names and files of sampled frames."""
    if column == "frames":
        kernels = frame["kernel"].to_list() if "kernel" in frame.columns else [False] * frame.height
        hashed = [
            list(frames) if kernel else [_user_frame(f, key) for f in frames]
            for frames, kernel in zip(frame["frames"].to_list(), kernels, strict=True)
        ]
        return [pl.Series("frames", hashed, dtype=frame.schema["frames"])]
    changed = [
        text if kind in privacy.FRAME_KINDS or not text else _sampled(column, name, file, kind, key)
        for text, name, file, kind in frame.select(pl.col(column).alias("text"), "name", "file", "kind").iter_rows()
    ]
    return [pl.Series(column, changed, dtype=pl.String)]


def _sampled(column: str, name: str, file: str, kind: str, key: bytes) -> str:
    if column == "file":
        return _source(file, key) if kind == "python" else _library(file, key)
    if kind == "python":
        return name if _public_source(file) else _user_frame(name, key)
    return _user_frame(name, key)


def _mapped(series: pl.Series, change: object) -> pl.Series:
    known = {text: change(text) for text in series.unique().to_list() if text}  # type: ignore[operator]
    return pl.Series(series.name, [known.get(t, t) for t in series.to_list()], dtype=series.dtype)


def _path(path: str, key: bytes) -> str:
    if privacy.DEVICE_FILES.fullmatch(path):
        return path
    return os.sep.join(_leaf(part, key) if part else "" for part in path.split(os.sep))


def _object(text: str, key: bytes) -> str:
    if privacy.INODES.fullmatch(text):
        return text
    return _path(text, key) if text.startswith("/") else _hash(text, key)


def _address(text: str, key: bytes) -> str:
    """Hash ``10.0.0.1:80``, ``[fd00::1]:80``, a path, or ``@name``. Loopback and unspecified addresses stay; others
    become ones that nobody has, of the same version (240.0.0.0/4 of RFC 1112, 100::/64 of RFC 6666)."""
    if text.startswith("/"):
        return _path(text, key)
    if text.startswith("@"):
        return f"@{_leaf(text[1:], key)}"
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return _hash(text, key)
    if address.is_loopback or address.is_unspecified:
        return text
    digest = hashlib.blake2b(address.packed, key=key, digest_size=8).digest()
    if address.version == 4:
        return f"{ipaddress.IPv4Address(bytes([240]) + digest[:3])}{colon}{port}"
    return f"[{ipaddress.IPv6Address(bytes([1]) + bytes(7) + digest)}]{colon}{port}"


def _interrupt(name: str, key: bytes) -> str:
    return name if name in privacy.SOFTIRQS else _leaf(name, key)


def _filesystem(name: str, key: bytes) -> str:
    kind, dot, subtype = name.partition(".")
    return kind + dot + (_hash(subtype, key) if subtype else "")


def _removed(text: str, key: bytes) -> str:
    return ""


def _leaf(name: str, key: bytes) -> str:
    """Hash runs of digits and of other characters separately: a series of files stays one (see `path_pattern`)."""
    runs = re.findall(r"[0-9]+|[^0-9]+", name)
    return "".join(_digits(run, key) if run[0] in string.digits else _hash(run, key) for run in runs)


def _group(text: str, key: bytes) -> str:
    """Hash a group's name, or its key (name, a bar, the numbers of its ranks)."""
    name, bar, ranks = text.partition("|")
    return (name if privacy.PURPOSES.fullmatch(name) else _hash(name, key)) + bar + ranks


def _user_frame(frame: str, key: bytes) -> str:
    """Hash a frame; an unnamed one (``[...]``) and one with file and line keep their form."""
    if place := _WITH_LINE.fullmatch(frame):
        name, file, line = place.groups()
        return f"{name if _public_source(file) else _hash(name, key)} ({_source(file, key)}:{line})"
    if privacy.PUBLIC_NATIVE.fullmatch(frame):
        return frame
    hashed = _hash(frame, key)
    return f"[{hashed}]" if frame.startswith("[") else hashed


def _public_source(file: str) -> str:
    """Return the public end of the path of a Python source file; empty if it is private."""
    found = privacy.PUBLIC_SOURCE.fullmatch(file)
    if found is None or (found["name"] is not None and found["name"] not in privacy.PACKAGES):
        return ""
    return found["package"] or found["standard"] or found["frozen"]


def _source(file: str, key: bytes) -> str:
    """Hash the path of a Python source file but for its public end."""
    public = _public_source(file)
    return _path(file[: len(file) - len(public)], key) + public if public else _path(file, key)


def _library(file: str, key: bytes) -> str:
    """Hash the path of a native module but for the name of a public one."""
    directory, slash, name = file.rpartition("/")
    return _path(directory, key) + slash + name if privacy.PUBLIC_LIBRARY.fullmatch(name) else _path(file, key)


def _digits(text: str, key: bytes) -> str:
    return str(int.from_bytes(hashlib.blake2b(text.encode(), key=key, digest_size=6).digest(), "big"))


def _hash(text: str, key: bytes) -> str:
    """Return eight letters; no digits, so that a hash never looks like a number in a series."""
    digest = hashlib.blake2b(text.encode(), key=key, digest_size=8).digest()
    return "".join(chr(ord("a") + byte % 26) for byte in digest)
