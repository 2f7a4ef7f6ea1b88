"""Exports of Nsight Systems made by hand, with the tables and columns its documentation and real exports have."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH = 1_760_000_000_000_000_000
PID, TID = 4711, 4712
GLOBAL = 0x0100_0000_0000_0000  # a host's number above the process's
COMM_INIT, COLLECTIVE, PEER = 100, 101, 102
_LAYOUTS = {
    COMM_INIT: [("NCCL communicator ID", 18, None), ("No. of ranks", 5, 8), ("Rank", 5, 12), ("CUDA device", 5, 16)],
    COLLECTIVE: [("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8)],
    PEER: [("NCCL communicator ID", 18, None), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)],
}
_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER, globalTid"
    " INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER, callchainId INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId"
    " INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,"
    " shortName INTEGER NOT NULL, mangledName INTEGER, gridX INTEGER,"
    " gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER",
    "TARGET_INFO_GPU": "vmId INTEGER, id INTEGER, name TEXT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,"
    " correlationId INTEGER, globalPid INTEGER, value INTEGER, bytes INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,"
    " color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,"
    " jsonTextId INTEGER, jsonText TEXT, binaryData BLOB",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER, schemaId INTEGER, idx INTEGER, flags INTEGER, type INTEGER,"
    " name TEXT, description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER NOT NULL, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT, name TEXT, nameEnum INTEGER, value TEXT",
}


@dataclass
class Export:
    """An export to be; instants in microseconds since the session's start."""

    pid: int = PID
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    correlation: int = 0

    def text(self, value: str) -> int:
        """A text's number."""
        return self.texts.setdefault(value, len(self.texts) + 1)

    def add(self, table: str, **row: Any) -> None:
        """A row of a table."""
        self.rows.setdefault(table, []).append(row)

    def thread(self, tid: int = TID) -> int:
        """A thread's number in an export."""
        return GLOBAL | self.pid << 24 | tid

    def kernel(
        self, name: str, at: int, us: int, *, launched: int, stream: int = 7, tid: int = TID, device: int = 0
    ) -> None:
        """A kernel and the call that launched it, which takes 5 us."""
        self.correlation += 1
        self.call("cudaLaunchKernel_v7000", launched, 5, tid=tid)
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            **_span(at, us),
            deviceId=device,
            contextId=1,
            streamId=stream,
            correlationId=self.correlation,
            globalPid=GLOBAL | self.pid << 24,
            demangledName=self.text(name),
            shortName=self.text(name.partition("(")[0]),
        )

    def call(self, name: str, at: int, us: int, *, tid: int = TID) -> None:
        """A call into the CUDA runtime, with the number of the last kernel."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            **_span(at, us),
            eventClass=0,
            globalTid=self.thread(tid),
            correlationId=self.correlation,
            nameId=self.text(name),
            returnValue=0,
        )

    def range(self, text: str, at: int, us: int | None, *, by_id: bool = False, tid: int = TID, **more: Any) -> None:
        """An NVTX range; without `us` one that was still open."""
        told = {"textId": self.text(text)} if by_id else {"text": text}
        span = {**_span(at, us or 0), **({} if us is not None else {"end": None})}
        row: dict[str, Any] = {**span, "eventType": 59, "globalTid": self.thread(tid), **told, **more}
        self.add("NVTX_EVENTS", **row)

    def session(self, **variables: object) -> None:
        """The session's start, the host, and the environment of the process."""
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH)
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node-1\x1b[0m")
        said = "\n".join(f"{name}={value}" for name, value in {"SECRET_TOKEN": "hunter2", **variables}.items())
        self.add("TARGET_INFO_SYSTEM_ENV", name="DeviceEnvironment", value=said)

    def layouts(self) -> None:
        """Of NCCL's payloads."""
        for schema, fields in _LAYOUTS.items():
            for index, (name, kind, offset) in enumerate(fields):
                row = {"domainId": 1, "schemaId": schema, "idx": index, "type": kind, "name": name, "offset": offset}
                self.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", **row)

    def include(self, other: Export) -> None:
        """Take in the rows of another process of the same report: texts are shared, correlations are not."""
        by_number = {number: value for value, number in other.texts.items()}
        for table, rows in other.rows.items():
            if not table.startswith(("TARGET_INFO", "NVTX_PAYLOAD")):
                named = ("nameId", "demangledName", "shortName", "textId")
                for row in rows:
                    self.add(table, **{k: self.text(by_number[v]) if k in named else v for k, v in row.items()})

    def write(self, path: Path, *, without: Sequence[str] = ()) -> Path:
        """The database; `without`: columns that this version does not have."""
        self.rows["StringIds"] = [{"id": number, "value": value} for value, number in self.texts.items()]
        with closing(sqlite3.connect(path)) as connection:
            for table, rows in self.rows.items():
                columns = [part for part in _TABLES[table].split(", ") if part.split()[0] not in without]
                connection.execute(f'CREATE TABLE "{table}" ({", ".join(columns)})')
                for row in rows:
                    kept = {name: value for name, value in row.items() if name not in without}
                    marks = ", ".join("?" * len(kept))
                    connection.execute(
                        f'INSERT INTO "{table}" ({", ".join(kept)}) VALUES ({marks})', list(kept.values())
                    )
            connection.commit()
        return path


def payload(schema: int, *values: int) -> bytes:
    """A payload as it stands in ``binaryData``."""
    form = {COMM_INIT: "<Qiiii", COLLECTIVE: "<QQ", PEER: "<QQii"}[schema]
    body = struct.pack(form, *values, *([0] * (len(form) - 1 - len(values))))
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(body), 32 + len(body)) + body


def _span(at: int, us: int) -> dict[str, int]:
    return {"start": at * 1000, "end": (at + us) * 1000}
