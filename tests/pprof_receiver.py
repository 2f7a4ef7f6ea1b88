"""A receiver of profiles on loopback, which decodes requests and pprof with Google's protobuf."""

from __future__ import annotations

import base64
import gzip
import http.server
import json
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PUSH = "/push.v1.PusherService/Push"
WRITE_RAW = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
_I64, _U64, _STR, _MSG, _BYTES, _BOOL = 3, 4, 9, 11, 12, 8
# field number, name, type or message, repeated: proto/profile.proto of google/pprof, profilestore.proto of Parca
_MESSAGES: dict[str, list[tuple[int, str, int | str, bool]]] = {
    "ValueType": [(1, "type", _I64, False), (2, "unit", _I64, False)],
    "Label": [(1, "key", _I64, False), (2, "str", _I64, False), (3, "num", _I64, False)],
    "Sample": [(1, "location_id", _U64, True), (2, "value", _I64, True), (3, "label", "Label", True)],
    "Mapping": [(1, "id", _U64, False), (5, "filename", _I64, False)],
    "Line": [(1, "function_id", _U64, False), (2, "line", _I64, False)],
    "Location": [(1, "id", _U64, False), (2, "mapping_id", _U64, False), (4, "line", "Line", True)],
    "Function": [(1, "id", _U64, False), (2, "name", _I64, False), (4, "filename", _I64, False)],
    "Profile": [
        (1, "sample_type", "ValueType", True), (2, "sample", "Sample", True), (3, "mapping", "Mapping", True),
        (4, "location", "Location", True), (5, "function", "Function", True), (6, "string_table", _STR, True),
        (9, "time_nanos", _I64, False), (10, "duration_nanos", _I64, False), (11, "period_type", "ValueType", False),
        (12, "period", _I64, False), (14, "default_sample_type", _I64, False),
    ],
    "Pair": [(1, "name", _STR, False), (2, "value", _STR, False)],
    "LabelSet": [(1, "labels", "Pair", True)],
    "RawSample": [(1, "raw_profile", _BYTES, False)],
    "RawSeries": [(1, "labels", "LabelSet", False), (2, "samples", "RawSample", True)],
    "WriteRawRequest": [(2, "series", "RawSeries", True), (3, "normalized", _BOOL, False)],
}  # fmt: skip


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="test_pprof.proto", package="test_pprof", syntax="proto3")
    for name, fields in _MESSAGES.items():
        made = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            one = made.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                one.type, one.type_name = _MSG, f".test_pprof.{kind}"
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test_pprof.{name}")) for name in _MESSAGES
    }


_CLASSES = _classes()


@dataclass(frozen=True)
class Stored:
    """A stored profile: its labels and the decoded message."""

    labels: dict[str, str]
    profile: Any

    def texts(self, kind: Any) -> tuple[str, str]:
        return self.profile.string_table[kind.type], self.profile.string_table[kind.unit]

    def place(self, location: int) -> tuple[str, str, int]:
        """Return function, base name of its file, and line."""
        line = self.profile.location[location - 1].line[0]
        function, strings = self.profile.function[line.function_id - 1], self.profile.string_table
        return strings[function.name], Path(strings[function.filename]).name, line.line

    def weight_through(self, place: tuple[str, str, int]) -> int:
        """Return the weight of the samples whose stack has `place`."""
        samples = self.profile.sample
        return sum(one.value[0] for one in samples if place in map(self.place, one.location_id))


class Receiver:
    """Pyroscope's and Parca's interface. `refuse`: a status instead; `grpc_status`; `page`: answers as a web page does;
    answers once `released`."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []
        self.headers: list[dict[str, str]] = []
        self.requests = 0
        self.refuse, self.grpc_status, self.page = 0, 0, False
        self.reached, self.released = threading.Event(), threading.Event()
        self.released.set()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests += 1
                receiver.reached.set()
                receiver.released.wait(60)
                receiver.headers.append(dict(self.headers.items()))
                status, kind, answer = receiver.answer(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                with suppress(ConnectionError):  # it has not waited
                    self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, body: bytes) -> tuple[int, str, bytes]:
        if self.refuse:
            return self.refuse, "text/plain", b"full\x1b[31m"
        if self.page or path not in (PUSH, WRITE_RAW):
            return 200, "text/html", b"<html></html>"
        if path == PUSH:
            for one in json.loads(body)["series"]:
                raw = [base64.b64decode(sample["rawProfile"], validate=True) for sample in one["samples"]]
                self._store({pair["name"]: pair["value"] for pair in one["labels"]}, raw)
            return 200, "application/json", b"{}"
        if not self.grpc_status:
            assert body[0] == 0
            assert int.from_bytes(body[1:5], "big") == len(body) - 5
            for one in _CLASSES["WriteRawRequest"].FromString(body[5:]).series:
                labels = {pair.name: pair.value for pair in one.labels.labels}
                self._store(labels, [sample.raw_profile for sample in one.samples])
        trailer = f"grpc-status: {self.grpc_status}\r\ngrpc-message: no%20room\r\n".encode()
        return 200, "application/grpc-web+proto", b"\0\0\0\0\0\x80" + len(trailer).to_bytes(4, "big") + trailer

    def _store(self, labels: dict[str, str], profiles: list[bytes]) -> None:
        for raw in profiles:
            profile = _CLASSES["Profile"].FromString(gzip.decompress(raw))
            # as pkg/normalizer/validate.go of Parca and pkg/validation/validate.go of Pyroscope require
            assert profile.string_table[0] == ""
            for table in (profile.location, profile.function, profile.mapping):
                assert [one.id for one in table] == list(range(1, len(table) + 1))
            assert all(len(sample.value) == len(profile.sample_type) for sample in profile.sample)
            assert all("-" not in profile.string_table[one.type] for one in profile.sample_type)
            assert labels["service_name"]
            assert labels["__name__"]
            self.stored.append(Stored(labels, profile))

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
