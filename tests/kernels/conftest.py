"""What the tests of the matrix saw, as lines of JSON in the file that WHYSTALL_MATRIX names.

A guest may hang or die: the lines written until then count. `matrix.py` reads them:

* ``{"host": {...}}`` once: the kernel and its options that matter;
* ``{"seen": {...}}``: a tool's answer agreed with the truth (`Matrix.saw`);
* ``{"test": {...}}``: the outcome of a test, with the end of its traceback.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

TEXT_LIMIT = 6000


class Matrix:
    """Writes the lines; nothing where no file was named."""

    def __init__(self, place: Path | None) -> None:
        self._file = place.open("a", encoding="utf-8") if place is not None else None

    def saw(
        self,
        privilege: str,
        tool: str,
        engines: Mapping[str, str],
        not_seen: Iterable[str] = (),
        *,
        kprobes: bool = True,
    ) -> None:
        """A tool's answer agreed with the truth of the workload.

        Args:
            privilege: ``root`` or ``capabilities``.
            tool: as `whystall run` names it.
            engines: which engine served each collector (``{"syscalls": "ebpf"}``), as the envelope's coverage says.
            not_seen: what the envelope says it could not see.
            kprobes: false where there were none, or the test disarmed them.
        """
        self.line(
            "seen",
            {
                "privilege": privilege,
                "tool": tool,
                "kprobes": kprobes,
                "engines": dict(sorted(engines.items())),
                "not_seen": sorted(set(not_seen)),
            },
        )

    def line(self, kind: str, value: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({kind: value}) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line per test; a part that failed or was skipped counts for the whole."""
        if report.when == "call" or report.outcome != "passed":
            text = report.longreprtext[-TEXT_LIMIT:]
            self.line(
                "test",
                {"id": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 1), "text": text},
            )


_KEY: pytest.StashKey[Matrix] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    named = os.environ.get("WHYSTALL_MATRIX")
    matrix = config.stash[_KEY] = Matrix(Path(named) if named else None)
    config.pluginmanager.register(matrix)
    config.add_cleanup(matrix.close)
    matrix.line("host", {"release": platform.release(), "uid": os.geteuid()})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In a guest everything is there: a skipped test is a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and "WHYSTALL_GUEST" in os.environ:
        report.outcome = "failed"
        report.longrepr = f"a test may not be skipped under a stock kernel: {call.excinfo and call.excinfo.value}"
    return report


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest) -> Matrix:
    return request.config.stash[_KEY]
