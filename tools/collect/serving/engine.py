"""The ``procfs`` engine of the collector ``serving``: metrics of an inference server, read in turn during a window.

A server that is stuck may not answer, so that all requests are made in a thread of their own, which the window does not
wait for longer than one request may take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from whystall.tools.collect.options import ServingOptions
from whystall.tools.collect.serving.exposition import Exposition, parsed
from whystall.tools.collect.serving.listening import metrics_endpoints
from whystall.tools.collect.serving.scrape import TIMEOUT_S, Answer, Endpoint, endpoint_of, get
from whystall.tools.collect.tables import SERVING, filled
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target

COLLECTOR = "serving"
_MOST_ROWS = 2_000_000
_MOST_ENDPOINTS = 8
_HEALTH = "/health"


class ServingRows:
    """The rows of the collector. `series` numbers the distinct sets of labels: their texts are not kept."""

    def __init__(self) -> None:
        self.scrapes: list[tuple[object, ...]] = []
        self.values: list[tuple[object, ...]] = []
        self.spots: dict[str, str] = {}
        self._series: dict[object, int] = {}

    def add(self, at_ns: int, where: Endpoint, answer: Answer, health: Answer | None, size: int) -> None:
        """Store an answer of `where`; `health`: to the probe, None if there was none."""
        self.add_text(at_ns, where.address, answer.text, where.pid)
        state = (answer.status, answer.error, answer.took_ns, size)
        probe = (-2, 0) if health is None else (health.status, health.took_ns)
        self.scrapes.append((at_ns, where.address, where.pid, *state, *probe))

    def add_text(self, at_ns: int, local: str, text: str, pid: int) -> Exposition:
        """Store the known samples of `text`."""
        found = parsed(text)
        if len(self.values) + len(found.samples) > _MOST_ROWS:
            self.spots["metrics_left"] = "the number of values of a window"
            return found
        if found.left:
            self.spots["metrics_left"] = f"{found.left} samples"
        if found.odd:
            self.spots["odd_lines"] = str(found.odd)
        for one in found.samples:
            series = self._series.setdefault((local, one.quantity, one.labels), len(self._series))
            self.values.append(
                (at_ns, local, pid, one.server, one.quantity, one.name, one.part, series, one.le, one.value)
            )
        return found

    def capture(self) -> Capture:
        """Return the rows as tables."""
        tables = filled(SERVING, scrapes=self.scrapes, values=self.values)
        return Capture(
            tables=tables,
            hooks=["HTTP GET /metrics"],
            seen=len(self.scrapes),
            kept=len(self.scrapes),
            lost=0,
            proven=bool(self.values),
            not_seen=sorted(self.spots.items()),
        )


class ServingEngine(Engine):
    """See the module. Fills `serving` from the start of the window until its end."""

    name = "procfs"
    serves = frozenset({COLLECTOR})
    period_s = 1.0

    def __init__(self) -> None:
        self._endpoints: list[Endpoint] = []
        self._rows = ServingRows()
        self._period_s = 1.0
        self._end, self._begun = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped_ns = 0

    def unavailable(self) -> str | None:
        """Return None: whether a server answers is found out when it is asked."""
        return None

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Find the endpoints, and wait for the first answers. Raises `ToolError` (bad_argument) for a malformed URL."""
        options = ServingOptions.of(wanted, COLLECTOR)
        self._period_s = max(options.period_ns / 1e9, 0.1)
        pid = target.sole_pid or -1
        if options.urls:
            self._endpoints = [endpoint_of(url, pid) for url in sorted(options.urls)]
        else:
            self._endpoints, apart = metrics_endpoints(target.pids)
            if apart:
                self._rows.spots["metrics_elsewhere"] = ", ".join(map(str, apart[:8]))
        self._endpoints = self._endpoints[:_MOST_ENDPOINTS]
        if not self._endpoints:
            self._rows.spots.setdefault("no_metrics_port", "")
        self._thread = threading.Thread(target=self._run, name="serving-metrics", daemon=True)
        self._thread.start()
        self._begun.wait(2 * TIMEOUT_S)

    def stop(self) -> int:
        """Take the last reading, and return when the window ended."""
        if not self._stopped_ns:
            self._end.set()
            if self._thread is not None:
                self._thread.join(2 * TIMEOUT_S * max(1, len(self._endpoints)))
            self._stopped_ns = time.monotonic_ns()
        return self._stopped_ns

    def read(self) -> dict[str, Capture]:
        """Return the capture."""
        self.stop()
        with self._lock:
            return {COLLECTOR: self._rows.capture()}

    def close(self) -> None:
        """End the thread; idempotent."""
        self._end.set()

    def _run(self) -> None:
        while self._endpoints:
            last = self._end.is_set()
            for endpoint in self._endpoints:
                self._scrape(endpoint)
            self._begun.set()
            if last:
                break
            self._end.wait(self._period_s)
        self._begun.set()

    def _scrape(self, endpoint: Endpoint) -> None:
        at_ns = time.monotonic_ns()
        answer = get(endpoint, endpoint.path)
        health: Answer | None = get(endpoint, _HEALTH)
        with self._lock:
            self._rows.add(at_ns, endpoint, answer, health, len(answer.text))
