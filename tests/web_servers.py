"""A web application on loopback, served as `whystall serve` serves it, in a thread of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.routing import BaseRoute

from whystall.agent_server.interfaces.web import http_server
from whystall.agent_server.interfaces.web.app import web_app


@contextmanager
def serving(routes: Sequence[BaseRoute]) -> Iterator[int]:
    """The port of a server with `routes`."""
    with http_server.listen("127.0.0.1", 0) as listener:
        server = http_server.HttpServer(web_app(routes, None))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve_on(listener)))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
