"""The console on loopback, as `whystall serve` serves it, with MCP beside it, and what its pages show."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from starlette.routing import Route

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.http import http_app
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.interfaces.mcp.tokens import Tokens
from whystall.agent_server.interfaces.web import http_server
from whystall.agent_server.interfaces.web.console.routes import console_routes
from whystall.agent_server.interfaces.web.console.sessions import Sessions
from whystall.agent_server.interfaces.web.console.site import Site
from whystall.agent_server.interfaces.web.serve import Server
from whystall.agent_server.settings.load import load
from whystall.agent_server.stores import Stores
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.knowledge_base.classify.report import Report
from whystall.knowledge_base.times import now
from whystall.tools.collect.slice_history import FORM, LOG_BYTES, LOG_NAME, PART_NS, PARTS
from whystall.tools.collect.slice_log import SliceLog
from whystall.tools.collect.slice_parts import HISTORY, packed

SCOPES = {"watch": ["observe"], "desk": ["tickets"], "root": ["admin"]}
HOSTILE = "<script>window.executed=1</script> **x** `y` \"'><img src=x onerror=window.executed=1>\u202e"
SETTINGS = """
[users.ann]
name = "Ann"
[users.wang]
name = "王伟"
"""


def token_of(name: str) -> str:
    """A static token."""
    return f"a-static-token-of-{name}-0123456789"


def write_settings(directory: Path) -> Path:
    """Write a settings file with the tokens in files of their own."""
    text = SETTINGS
    for name, scopes in SCOPES.items():
        file = directory / f"{name}.token"
        file.write_text(token_of(name))
        file.chmod(0o600)
        text += f'[access.tokens.{name}]\ntoken = {{ file = "{file}" }}\nscopes = {json.dumps(scopes)}\n'
    path = directory / "whystall.toml"
    path.write_text(text)
    return path


class Console:
    """A console that runs, and its parts."""

    def __init__(self, app: App, site: Site, url: str) -> None:
        self.app = app
        self.site = site
        self.url = url

    @property
    def kb(self) -> Stores:
        """The database."""
        return self.app.kb()

    def visitor(self, name: str = "", lang: str = "en") -> Visitor:
        """A person who has logged in with the token `name`; without one nobody has."""
        made = Visitor(self.url, lang)
        if name:
            assert made.login(token_of(name)).status_code == 303
        return made


class Visitor:
    """A browser without scripts."""

    def __init__(self, url: str, lang: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False, headers={"Accept-Language": lang})

    def login(self, token: str, **more: str) -> httpx.Response:
        """Send the form of the login."""
        return self.http.post("/login", data={"token": token, **more})

    def get(self, path: str) -> httpx.Response:
        """Open a page."""
        return self.http.get(path)

    def csrf(self) -> str:
        """The proof in the forms of this session."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.get("").text)
        assert found is not None
        return html.unescape(found[1])

    def post(self, path: str, **form: str) -> httpx.Response:
        """Send a form of a page."""
        return self.http.post(path, data={"csrf": self.csrf(), **form})


@contextmanager
def serving(
    clock: list[float] | None = None, lone: str | None = None, port: int = 0, app: App | None = None
) -> Iterator[Console]:
    """A console with the settings of WHYSTALL_CONFIG. `clock`: the monotonic seconds of its sessions."""
    with (app or App()).closing() as app, http_server.listen("127.0.0.1", port) as listener:
        settings = load()
        mcp_server = McpServer(app)
        tokens = Tokens(lone, settings.access)
        sessions = Sessions(tokens, (lambda: clock[0]) if clock else time.monotonic)
        site = Site(app, mcp_server, tokens, settings, sessions)
        routes: Sequence[Route] = list(console_routes(site))
        mcp = http_app(mcp_server, "127.0.0.1", lone, access=settings.access)
        server = Server(None, mcp_server, mcp, None, routes)
        loops: list[asyncio.AbstractEventLoop] = []

        async def run() -> None:
            loops.append(asyncio.get_running_loop())
            await server.serve_on(listener)

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        try:
            yield Console(app, site, http_server.url(listener, "/console"))
        finally:
            loops[0].call_soon_threadsafe(server.leave)
            thread.join(60)


def report(title: str, description: str = "", **labels: str) -> Report:
    """A work order of a person."""
    return Report(origin="work_order", title=title, description=description, labels=labels, created=now())


def write_watch(home: Path, name: str = "llama-7b", stalled: bool = True) -> None:
    """Write the status and log of a watcher, which is this process, as `WatchService` writes them."""
    directory = home / "watch"
    directory.mkdir(exist_ok=True)
    processes = [
        {"pid": 4100 + rank, "rank": rank, "places": 3, "step_ms": 412.5, "stalled": stalled and rank == 2}
        | {"stalled_s": 43.2 if stalled and rank == 2 else 0.0}
        for rank in range(4)
    ]
    jobs = [{"id": "slurm:4242", "name": name, "processes": processes}]
    jobs.append({"id": "process:777", "name": "vllm serve", "processes": [{"pid": os.getpid(), "step_ms": 0.0}]})
    status = {"pid": os.getpid(), "running": True, "since": time.time(), "written": time.time() + 3600, "jobs": jobs}
    (directory / "status.json").write_text(json.dumps({**status, "beyond": 0, "recent": []}))
    stall = {"kind": "gap", "tid": 4102, "start_ns": 10**9, "end_ns": 14 * 10**9, "usual_ns": 4 * 10**8}
    answer = {
        "verdict": "confirmed",
        "title": "Synchronous checkpoint write",
        "cause": "sync_checkpoint_write",
        "ticket": "1",
        "diagnosis": "d-1",
    }
    entries = [
        {"at": "2026-11-29T09:15:02.120+00:00", "job": "slurm:4242", "name": name, "why": "no_cause", "noticed_ns": 1}
        | {"pid": 4102, "stall": {**stall, "end_ns": None, "kind": "late"}},
        {"at": "2026-11-29T10:02:44.500+00:00", "job": "slurm:4242", "name": name, "why": "cause_found"}
        | {"noticed_ns": 1, "pid": 4102, "stall": stall, "answer": answer},
    ]
    (directory / "stalls.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def write_history(home: Path) -> None:
    """Write half an hour of waits of the ranks, as `History` writes them."""
    directory = home / "watch"
    directory.mkdir(exist_ok=True)
    log = SliceLog(directory / LOG_NAME, LOG_BYTES, every_boot=True)
    minute = time.time_ns() // 60_000_000_000
    jobs = {str(4100 + rank): ("slurm:4242", "llama-sft") for rank in range(4)}
    known = {"form": FORM, "recorded": [PART_NS] * PARTS, "run": 1, "min_ns": 10**6, "lost": 0, "jobs": jobs}
    known["sample_ns"] = 10**9 // 19
    for ago in range(30, 0, -1):
        rows = [
            [
                *(4100 + rank, "pt_main_thread", True, state, call, line, path, 400, 2 * 10**9, []),
                *[seconds * 10**9 // (1 + ago % 5) // PARTS] * PARTS,
            ]
            for rank in range(4)
            for state, call, line, path, seconds in (
                ("S", "futex", "all_reduce (train.py:212)", "", 40 if rank != 2 else 5),
                ("D", "fsync", "save (checkpoint.py:88)", "/scratch/run7/checkpoint.pt", 6 if rank == 2 else 1),
                ("R", "", "", "", 2),
            )
        ]
        begun = (minute - ago) * 60_000_000_000
        log.append(HISTORY, begun, begun + 60_000_000_000, packed({**known, "rows": rows}))
    log.close()


def file_tickets(kb: Stores, count: int = 6) -> None:
    """File tickets of people, the last one with a comment."""
    service = TicketService(kb)
    names = (
        ("checkpoint to NFS takes minutes", "Every 500 steps all ranks stop for two minutes while rank 0 writes."),
        ("NCCL timeout on node gpu03", "watchdog caught collective operation timeout: ALLREDUCE, 1800 s"),
        ("GPU 5 fell off the bus", "NVRM: Xid (PCI:0000:3b:00): 79, pid=4102, GPU has fallen off the bus."),
        ("data loader starves the GPUs", "GPU utilisation 40 %, four workers at 100 % CPU decoding images"),
        ("训练在第 3 个 epoch 卡住", "rank 5 停在 all_reduce，其他 rank 等待超过 30 分钟"),
        ("disk of node gpu11 is full", "No space left on device while writing /scratch/run7/checkpoint.pt"),
    )
    for index in range(count):
        title, text = names[index % len(names)]
        made = service.file(report(title if index < len(names) else f"{title} ({index})", text, host=f"gpu{index:02d}"))
    service.comment(made.ticket.id, "df -h shows 100 % on /scratch;\nthe cleanup job of last night failed.", "ann")
