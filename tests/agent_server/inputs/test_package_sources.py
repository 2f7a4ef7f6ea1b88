"""Asking package sources: pip against an index on loopback, apt by recorded answers of apt-cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whystall.agent_server.inputs.package_sources import offers
from whystall.agent_server.presentation.defect_lines import check_text

WHEELS = ("3.6.0", "3.7.1")
MADISON = """\
  libnccl2 | 2.21.5-1+cuda12.4 | https://mirror.example/repos/debian12/x86_64  Packages
  libnccl2 | 2.27.3-1+cuda12.9 | https://mirror.example/repos/debian12/x86_64  Packages
"""


class Index(BaseHTTPRequestHandler):
    """A simple index (PEP 503) with wheels of one package."""

    def do_GET(self) -> None:
        name = self.path.strip("/").rpartition("/")[2]
        self.send_response(200 if name == "triton" else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        links = (f"triton-{version}-py3-none-any.whl" for version in WHEELS)
        self.wfile.write("".join(f'<a href="/files/{link}">{link}</a>' for link in links).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    yield
    server.shutdown()
    server.server_close()


def apt(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, *, alone: bool = True) -> None:
    """Put an ``apt-cache`` with this answer first on the PATH, or `alone`."""
    place = folder / "apt-cache"
    place.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    place.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder) if alone else f"{folder}:/usr/bin:/bin")


@pytest.mark.thorough
def test_pip_is_asked_for_the_wanted_version(index: None) -> None:
    (found,) = offers("triton", "3.7.1")
    assert (found.state, found.version) == ("offered", "3.7.1")


@pytest.mark.thorough
def test_an_index_that_cannot_be_reached_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (found,) = offers("triton", "3.8.0")
    assert found.state == "unreachable"
    assert "could not be reached" in check_text(found, "en")
    assert "无法访问" in check_text(found, "zh")


def test_apt_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt(tmp_path, monkeypatch, f'[ "$*" = "madison libnccl2" ] && echo "{MADISON}"')
    assert offers("nccl", "2.29.3")[0].state == "too_old"
    found = {(one.manager, one.package): one for one in offers("nccl", "2.26.2")}
    assert found["apt", "libnccl2"].state == "offered"
    assert found["apt", "libnccl2"].version == "2.27.3"
    assert found["pip", "nvidia-nccl-cu12"].state == "not_installed"


def test_hostile_answers_are_inert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt(tmp_path, monkeypatch, "printf '\\033[31m\\377 | x | y\\n'; printf '\\033]0;x\\007 failed' >&2; exit 3")
    (found,) = offers("glibc", "2.41")
    assert found.state == "unreachable"
    assert "\x1b" not in check_text(found, "en")


def test_a_component_without_packages_is_stated() -> None:
    (found,) = offers("cann", "8.3.rc2")
    assert found.state == "no_package"
    assert "vendor" in check_text(found, "en")
