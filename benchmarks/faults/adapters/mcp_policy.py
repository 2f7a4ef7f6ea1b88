"""Diagnose as an assistant that only calls tools of ``whystall serve`` over MCP, and print its conclusion.

Policies: ``careful`` (fixed rules over the structured results), ``careful-text`` (the same over the texts alone),
``model`` (the language model of WHYSTALL_LLM_*, which reads the texts) and ``model-structured``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from mcp import MCPError

from benchmarks.faults.adapters import homes
from benchmarks.faults.adapters.whystall_rules import MAIN
from benchmarks.faults.assistants import form, session
from benchmarks.faults.assistants.model_policy import ModelPolicy
from benchmarks.faults.assistants.policy import Careful, Policy
from benchmarks.faults.assistants.text_policy import CarefulReader
from benchmarks.faults.assistants.transcripts import Transcript, answer_of
from whystall.agent_server.llm.client import ChatClient
from whystall.agent_server.llm.wire import LlmError
from whystall.agent_server.settings.load import load_llm
from whystall.tools.contract.errors import ToolError

POLICIES = ("careful", "careful-text", "model", "model-structured")


async def diagnose(name: str, pid: int, symptom: str, transcript: Path | None) -> Transcript:
    """Let the policy `name` answer. Raises `ToolError` without a usable model, `LlmError`, MCPError, OSError."""
    async with AsyncExitStack() as stack:
        policy = await _policy(name, stack)
        with homes.fresh() as environment, tempfile.TemporaryFile("w+") as errors:
            command = [sys.executable, "-c", MAIN, "serve"]
            try:
                return await session.run(command, environment, policy, pid, symptom, transcript, errors)
            except MCPError as error:
                errors.seek(0)
                raise OSError(f"{error} {errors.read()[-500:]}") from error


async def _policy(name: str, stack: AsyncExitStack) -> Policy:
    causes = form.titles()
    if name == "careful":
        return Careful()
    if name == "careful-text":
        return CarefulReader(causes)
    client = await stack.enter_async_context(ChatClient(load_llm()))
    return ModelPolicy(client, causes, "structured" if name == "model-structured" else "text")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--symptom", required=True)
    parser.add_argument("--policy", choices=POLICIES, default="careful")
    parser.add_argument("--transcript", type=Path, help="store the transcript in this file, or in this directory")
    options = parser.parse_args()
    try:
        done = anyio.run(diagnose, options.policy, options.pid, options.symptom, options.transcript)
    except (ToolError, LlmError, OSError) as error:
        sys.exit(str(error)[:1000])
    print(json.dumps(answer_of(done).model_dump(mode="json")))


if __name__ == "__main__":
    main()
