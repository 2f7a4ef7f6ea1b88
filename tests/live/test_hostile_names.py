"""Names of live processes that would harm a terminal or a page. Not beside other tests: a newline in a name splits
lines of the kernel's trace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WHYSTALL = str(Path(sys.executable).with_name("whystall"))


def test_a_hostile_command_name_of_a_live_process_is_inert(tmp_path: Path) -> None:
    env = {**os.environ, "WHYSTALL_HOME": str(tmp_path / "state")}
    rename = "open('/proc/self/comm', 'wb').write(b'\\x1b[2J\\n# `$(x)`\\xff')"
    program = f"{rename}\nprint(flush=True)\nwhile True: sum(range(999))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            command = [WHYSTALL, "run", "host_snapshot", "--pid", str(child.pid), "--duration", "0.5"]
            printed = [subprocess.run([*command, *more], env=env, capture_output=True) for more in ((), ("--json",))]
        finally:
            child.kill()
    for done in printed:
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode()
        assert "\x1b" not in text
        assert not any(line.startswith("# ") for line in text.splitlines())
    assert "$(x)" in printed[1].stdout.decode()
