"""What a training process takes in with the capture: the standard library and a few small modules of ours."""

from __future__ import annotations

import json
import subprocess
import sys

IMPORT = """
import sys
before = set(sys.modules)
from whystall.tools.collect.ftrace import ftrace_record, ftrace_record_start, ftrace_record_stop
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_the_front_door_pulls_in_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
    modules: list[str] = json.loads(done.stdout)
    foreign = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
    ours = {name for name in foreign if name.partition(".")[0] == "whystall"}
    assert foreign == ours
    rooms = {".".join(name.split(".")[:3]) for name in ours}
    assert rooms <= {
        "whystall",
        "whystall.tools",
        "whystall.tools.collect",
        "whystall.tools.contract",
        "whystall.tools.node",
        "whystall.tools.timeline",
    }
    for name in ours:
        parts = name.split(".")[2:]
        assert parts[:2] in ([], ["collect"], ["contract"], ["node"], ["timeline"]) or parts[:2] in (
            ["collect", "ftrace"],
            ["contract", "errors"],
            ["contract", "text"],
            ["node", "vantage"],
            ["timeline", "clocks"],
        ), name
    assert not {"ctypes", "subprocess", "tempfile", "asyncio", "socket", "multiprocessing", "sqlite3"} & set(modules)
