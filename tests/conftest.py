"""What all tests share."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from seeded_files import SeededFiles

LIVE = Path(__file__).parent / "live"
FORBIDDEN = "a live test may not be skipped as root with BTF"


def can_trace() -> bool:
    """Whether this machine can run every live test: root, and a kernel that carries BTF."""
    return os.geteuid() == 0 and Path("/sys/kernel/btf/vmlinux").exists()


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What this machine's settings file says concerns no test."""
    empty = tmp_path_factory.mktemp("settings") / "whystall.toml"
    empty.touch(mode=0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHYSTALL_CONFIG", str(empty))
        yield


@pytest.fixture(scope="session", autouse=True)
def _databases_without_fsync() -> Iterator[None]:
    """Half the time of the tests of databases would be fsync. A killed process loses nothing without it, either."""
    connect = sqlite3.connect

    def unsynchronised(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        with contextlib.suppress(sqlite3.Error, UnicodeDecodeError):  # no database: the test's own statement shall fail
            connection.execute("PRAGMA synchronous = OFF").close()
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", unsynchronised)
        yield


@pytest.fixture(scope="session", autouse=True)
def _new_knowledge_bases_are_copies(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fill new knowledge bases from one that was seeded before."""
    SeededFiles(tmp_path_factory.mktemp("seeded")).install()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected out of later garbage collections: scanning 15,000 tests again and again is a sixth of
    the time of the unit tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped live test into a failure where it could have run."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and LIVE in item.path.parents and can_trace():
        report.outcome = "failed"
        report.longrepr = f"{FORBIDDEN}: {call.excinfo and call.excinfo.value}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole live module that skips itself while it is imported."""
    report = yield
    if report.skipped and LIVE in collector.path.parents and can_trace():
        report.outcome = "failed"
        report.longrepr = f"{FORBIDDEN}: {report.longrepr}"
    return report
