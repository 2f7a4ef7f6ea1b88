"""Runs tools on a process, one after another, and prints what each said as a line of JSON.

    asking.py PID SECONDS ENGINE TOOL...

For tests that ask as somebody else: one start of the interpreter for all of them.
"""

from __future__ import annotations

import json
import sys

import anyio

from whystall.agent_server.app import App
from whystall.tools.contract.errors import ToolError


async def ask(pid: int, seconds: float, engine: str, tools: list[str]) -> None:
    """One line per tool: its name, and the envelope or the error."""
    app = App()
    for name in tools:
        try:
            result = await app.run_tool(name, {"pid": pid, "duration": seconds}, engine=engine)  # type: ignore[arg-type]
            said = {"tool": name, "result": result.model_dump(mode="json")}
        except ToolError as error:
            said = {"tool": name, "error": error.code.value, "message": error.message, "remedy": error.remedy}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    anyio.run(ask, int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
