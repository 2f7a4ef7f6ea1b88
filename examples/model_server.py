#!/usr/bin/env python3
"""A small model server on loopback that answers by fixed rules or a script, without a language model.

It speaks the protocol of vLLM, Ollama, llama.cpp, DashScope, DeepSeek and others, ``POST /v1/chat/completions``, and
Anthropic's Messages API, ``POST /v1/messages`` (for ``WHYSTALL_LLM_PROTOCOL=anthropic``), both with and without
streaming, and ``GET /v1/models``, so that ``whystall diagnose --llm`` can be tried and tested without a model.

Try it, in two terminals::

    python examples/model_server.py --policy engineer
    WHYSTALL_LLM_BASE_URL=http://127.0.0.1:8399/v1 WHYSTALL_LLM_MODEL=example whystall diagnose --llm --pid N

In a test::

    with model_server.serve([Turn(calls=(Call("host_snapshot", {}),)), Raw(status=429)]) as server:
        ...  # server.base_url, server.requests

`model_http` has the answers and faults for scripts, `model_policies` the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from _command import Parser, between
from model_http import MODEL, Answer, Call, Cut, Die, Policy, Raw, Request, Server, Turn, error, script
from model_policies import POLICIES, DiesAfter

__all__ = [
    "MODEL",
    "Answer",
    "Call",
    "Cut",
    "Die",
    "Policy",
    "Raw",
    "Request",
    "Server",
    "Turn",
    "error",
    "script",
    "serve",
]


@contextlib.contextmanager
def serve(
    policy: Policy | Iterable[Answer], *, port: int = 0, key: str | None = None, model: str = MODEL
) -> Iterator[Server]:
    """Run a server that answers by `policy`, or by a script of answers, until the block ends."""
    server = Server(policy if callable(policy) else script(policy), port=port, key=key, model=model)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; return the exit status."""
    listed = "\n".join(f"  {name:<25} {named.about}" for name, named in POLICIES.items())
    command = Parser(
        description=(__doc__ or "").split("\n\nIn a test")[0],
        epilog=f"policies:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--policy", choices=POLICIES, default="engineer", metavar="NAME", help="default: %(default)s")
    command.add_argument(
        "--port", type=between(int, 0, 65535), default=8399, help="0: a free one; default: %(default)s"
    )
    command.add_argument("--key-file", type=Path, help="a file with the key that clients must have")
    command.add_argument("--die-after", type=between(int, 0, 1000), help="answers, then the server dies")
    options = command.parse_args(argv)
    policy = POLICIES[options.policy].make()
    if options.die_after is not None:
        policy = DiesAfter(policy, options.die_after)
    try:
        key = options.key_file.read_text().strip() if options.key_file else None
    except (OSError, UnicodeDecodeError) as problem:
        command.error(f"cannot read the key: {problem}")
    try:
        server = Server(_logged(policy), port=options.port, key=key)
    except OSError as problem:
        command.error(f"cannot listen at port {options.port}: {problem.strerror}; choose another --port")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    print(f"not a language model: fixed rules answer ({options.policy}: {POLICIES[options.policy].about})")
    print(f"export WHYSTALL_LLM_BASE_URL={server.base_url} WHYSTALL_LLM_MODEL={MODEL}", flush=True)
    server.start()
    try:
        server.stopping.wait()  # set by a policy that dies
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        server.stop()


def _logged(policy: Policy) -> Policy:
    """Return `policy` with a line on the terminal per answer."""

    def answer(request: Request) -> Answer:
        given = policy(request)
        what = type(given).__name__.lower()
        if isinstance(given, Turn):
            what = ", ".join(call.name for call in given.calls) or given.content or given.refusal or "nothing"
        print(f"{len(request.messages)} messages, {len(request.functions)} functions -> {what}", flush=True)
        return given

    return answer


if __name__ == "__main__":
    sys.exit(main())
