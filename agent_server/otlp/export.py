"""Export metrics and new diagnoses every few seconds, beside the server.

Diagnoses are read from the database, where whoever made them has stored them: no diagnosis waits for a collector. The
database is the queue. What a collector does not take is sent again; of more than `BACKLOG` diagnoses the oldest are
skipped, and what was stored before the server started is not sent. One that is stored again, as when it gets its
ticket, is not sent again.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from whystall.agent_server.diagnosis.transcript_files import path_of
from whystall.agent_server.diagnosis.transcript_reader import records_of
from whystall.agent_server.otlp.spans import spans_of
from whystall.agent_server.watch.host_metrics import host_metrics
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.extras import extra

if TYPE_CHECKING:
    from whystall.agent_server.diagnosis.transcript import Record
    from whystall.agent_server.otlp.sdk import Sender
    from whystall.agent_server.settings.sections.otlp import OtlpSettings, Signal
    from whystall.agent_server.stores import Stores
    from whystall.knowledge_base.models import Diagnosis

BACKLOG = 500
_AT_ONCE = 20
_log = logging.getLogger("whystall.otlp")


class OtlpExport:
    """Sends what `settings` name. Raises `ToolError` (bad_argument) if a library is missing, or a secret unreadable."""

    def __init__(self, kb: Stores, settings: OtlpSettings) -> None:
        with extra("otel"):
            from whystall.agent_server.otlp.sdk import Sender

        self._kb = kb
        self._settings = settings
        self._sender: Sender = Sender(settings)
        self._upto = kb.figures.last_diagnosis()
        self._sent: dict[Signal, int] = {name: self._upto for name in settings.signals if name != "metrics"}
        self._taken: dict[Signal, deque[str]] = {name: deque(maxlen=BACKLOG) for name in self._sent}
        self._failing: set[Signal] = set()

    async def run(self) -> None:
        """Export until cancelled."""
        try:
            while True:
                await anyio.to_thread.run_sync(self.tick, abandon_on_cancel=True)
                await anyio.sleep(self._settings.every_s)
        finally:
            self._sender.close()

    def tick(self) -> None:
        """Send the metrics as they are now, and the diagnoses that were there at the tick before: by now their
        transcripts are complete."""
        try:
            if "metrics" in self._settings.signals:
                now = time.time()
                self._note("metrics", self._sender.metrics(host_metrics(self._kb, now), now))
            for signal in self._sent:
                self._note(signal, self._send(signal))
            self._upto = self._kb.figures.last_diagnosis()
        except ToolError as error:  # the database is locked or damaged, which others report
            _log.warning("nothing is exported: %s", error)

    def _send(self, signal: Signal) -> bool:
        """Send what is new, until one is not taken; return whether all were."""
        after = self._sent[signal]
        if self._upto - after > BACKLOG:
            _log.warning("%s of %d diagnoses are not exported", signal, self._upto - after - BACKLOG)
            after = self._upto - BACKLOG
        send: Callable[[Diagnosis], bool] = self._traces if signal == "traces" else self._logs
        for position, diagnosis in self._kb.figures.diagnoses_between(after, self._upto, _AT_ONCE):
            if diagnosis.id not in self._taken[signal]:
                if not send(diagnosis):
                    return False
                self._taken[signal].append(diagnosis.id)
            self._sent[signal] = position
        return True

    def _traces(self, diagnosis: Diagnosis) -> bool:
        return self._sender.traces(diagnosis, spans_of(diagnosis, _records(diagnosis)))

    def _logs(self, diagnosis: Diagnosis) -> bool:
        return self._sender.logs(diagnosis, spans_of(diagnosis, _records(diagnosis))[0].start_ns)

    def _note(self, signal: Signal, taken: bool) -> None:
        """Log when a signal begins to fail, and when it no longer does."""
        if taken and signal in self._failing:
            self._failing.remove(signal)
            _log.warning("the collector takes %s again", signal)
        elif not taken and signal not in self._failing:
            self._failing.add(signal)
            _log.warning("the collector does not take %s; they are sent again later", signal)


def _records(diagnosis: Diagnosis) -> list[Record]:
    """Return the records of the transcript; empty if it is of another host, damaged or removed."""
    try:
        return records_of(path_of(diagnosis.id))
    except ToolError:
        return []
