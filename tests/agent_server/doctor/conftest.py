"""Hosts made of files, at the places where a kernel and its distribution say what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from whystall.agent_server.doctor.view import Lang, View

MakeHost = Callable[..., View]
INITIAL = {"pid": 4026531836, "user": 4026531837, "cgroup": 4026531835}
OWN = 4026532999


@pytest.fixture
def host(tmp_path: Path) -> MakeHost:
    """A view of a host with these files (``->`` begins a link's target; None: a directory), and these own
    namespaces."""

    def make(
        files: Mapping[str, str | bytes | None] | None = None,
        *,
        own: tuple[str, ...] = (),
        uid: int = 0,
        lang: Lang = "en",
    ) -> View:
        links = {f"/proc/self/ns/{kind}": f"->{kind}:[{OWN if kind in own else INITIAL[kind]}]" for kind in INITIAL}
        for name, content in {**links, **(files or {})}.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            elif isinstance(content, str) and content.startswith("->"):
                path.symlink_to(content[2:])
            else:
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        return View(tmp_path, lang, uid)

    return make
