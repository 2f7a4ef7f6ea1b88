"""How long the server takes for pages of the console with many tickets, and with a fleet of 200 hosts:
`python -m benchmarks.console [TICKETS]`.

The pages are called as ASGI in this process, so that neither the network nor a client is measured. One `whystall serve`
is each of the hosts.
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

import anyio
import httpx

from whystall.agent_server.app import App
from whystall.agent_server.interfaces.mcp.server import McpServer
from whystall.agent_server.interfaces.mcp.tokens import Tokens
from whystall.agent_server.interfaces.web.app import web_app
from whystall.agent_server.interfaces.web.console.routes import console_routes
from whystall.agent_server.interfaces.web.console.site import Site
from whystall.agent_server.settings.load import load
from whystall.knowledge_base.ticket_models import Comment, Human, Ticket
from whystall.tools.contract.findings import Severity

TOKEN = "a-token-of-the-benchmark-0123456789"
REPEATS = 20
HOSTS = 200
PAGES = (
    "",
    "/tickets",
    "/tickets?page=100",
    "/tickets?q=loader+gpu17",
    "/tickets?q=matches+nothing",
    "/tickets?state=all&severity=critical&page=20",
    "/tickets/5000",
    "/alerts",
    "/knowledge?q=slow+checkpoint",
)


def fill(app: App, count: int) -> None:
    """Store tickets of people, each with a comment."""
    kb = app.kb()
    severities = list(Severity)
    for start in range(0, count, 1000):
        with kb.transaction():
            for index in range(start, min(start + 1000, count)):
                stamp = f"2026-{index % 11 + 1:02d}-{index % 28 + 1:02d}T{index % 24:02d}:{index % 60:02d}:00Z"
                text = f"the loader of job {index} on node gpu{index % 97:02d} stalls " * 10
                human = Human(
                    title=f"loader of job {index} stalls on gpu{index % 97:02d}",
                    description=text,
                    comments=[Comment(by="ann", at=stamp, text=text)],
                )
                ticket = Ticket(
                    id="",
                    created=stamp,
                    updated=stamp,
                    origin="person",
                    dedup_key=f"bench:{index}",
                    severity=severities[index % len(severities)],
                    category="storage",
                    component="data-loading",
                    human=human,
                )
                kb.tickets.create(ticket, "bench")


@asynccontextmanager
async def visitor(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """Yield somebody who has logged in to a console that was just started."""
    site = Site(app, McpServer(app), Tokens(TOKEN, load().access), load())
    transport = httpx.ASGITransport(app=web_app(list(console_routes(site)), None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/console") as client:
        await client.post("/login", data={"token": TOKEN})
        yield client


@contextmanager
def fleet(home: Path) -> Iterator[str]:
    """Yield the settings of a fleet that runs: each address of loopback is a host, all served by one process."""
    home.mkdir()
    (home / "whystall.toml").touch()
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    words = [str(Path(sys.executable).with_name("whystall")), "serve", "--transport", "http", "--host", "0.0.0.0"]
    words += ["--port", str(port), *(f"--allow-host=127.0.1.{host}:{port}" for host in range(1, HOSTS + 1))]
    own = {"WHYSTALL_HOME": str(home), "WHYSTALL_CONFIG": str(home / "whystall.toml"), "WHYSTALL_TOKEN": TOKEN}
    with subprocess.Popen(words, env={**os.environ, **own}, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                with socket.socket() as tried:
                    if not tried.connect_ex(("127.0.1.1", port)):
                        break
                time.sleep(0.2)
            yield (
                f'[fleet]\nhosts = "127.0.1.[1-{HOSTS}]"\nurl = "http://{{host}}:{port}/mcp"\nplain_http = true\n'
                'token = { env = "FLEET_TOKEN" }\n'
            )
        finally:
            process.kill()


async def measure_fleet(app: App) -> None:
    """Print the time of the page of all hosts: when it is first opened, while they are asked, and afterwards, ms."""
    times: dict[str, list[float]] = {"nothing known": [], "being asked": [], "known": []}
    gc.freeze()  # as `whystall serve`
    for _ in range(REPEATS // 4):
        async with visitor(app) as client:
            known, pages = "nothing known", 0
            while pages < 4:
                began = time.perf_counter()
                page = (await client.get("/fleet")).text
                times[known].append(1000 * (time.perf_counter() - began))
                known = "being asked" if "data-pending" in page else "known"
                pages += known == "known"
                await anyio.sleep(0.2)
            print(f"{page.count('>reachable<')} of {HOSTS} hosts answered in time")
    for known, took in times.items():
        print(f"{f'/fleet, {known}':<46} median {median(took):6.1f} ms, longest {max(took):6.1f} ms")


async def measure(app: App) -> None:
    """Print the time of each page, and the CPU time of it, ms."""
    async with visitor(app) as client:
        for page in PAGES:
            took, used = [], []
            for _ in range(REPEATS + 1):  # the first imports and compiles
                began, cpu = time.perf_counter(), time.process_time()
                answer = await client.get(page)
                took.append(1000 * (time.perf_counter() - began))
                used.append(1000 * (time.process_time() - cpu))
                assert answer.status_code == 200, (page, answer.status_code)
            cpu = f"CPU {median(used[1:]):6.1f} ms"
            print(f"{page or '/':<46} median {median(took[1:]):6.1f} ms, longest {max(took[1:]):6.1f} ms, {cpu}")


def main() -> None:
    """Measure in a directory of its own."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as home:
        os.environ["WHYSTALL_HOME"] = home
        with App(Path(home) / "knowledge.db").closing() as app:
            fill(app, count)
            print(f"{count} tickets")
            anyio.run(measure, app)
            print(f"{HOSTS} hosts")
            with fleet(Path(home) / "host") as settings:
                config = Path(home) / "whystall.toml"
                config.write_text(settings)
                os.environ |= {"WHYSTALL_CONFIG": str(config), "FLEET_TOKEN": TOKEN}
                anyio.run(measure_fleet, app)


if __name__ == "__main__":
    main()
