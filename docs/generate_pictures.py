"""Write docs/top.svg from a real run: a training of two ranks, of which one loads its data slowly. Needs root.

usage: .venv/bin/python docs/generate_pictures.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from whystall.agent_server.presentation.top_table import top_table
from whystall.agent_server.watch.jobs import Selection
from whystall.agent_server.watch.live import LiveJobs

_TRAINING = """
import os, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")

def load():
    time.sleep(0.25 if os.environ["RANK"] == "1" else 0.05)

def step():
    dist.all_reduce(torch.ones(1000))

while True:
    load()
    step()
"""
_LOOKS = 12


def main() -> None:
    name = "llama-sft"
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "TORCHELASTIC_RUN_ID": name}
    script = Path("/tmp/train.py")  # noqa: S108 - its name is shown
    script.write_text(_TRAINING)
    ranks = [
        subprocess.Popen([sys.executable, script], env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank})
        for rank in ("0", "1")
    ]
    console = Console(width=110, record=True, force_terminal=True, file=io.StringIO())
    try:
        with LiveJobs(Selection(names=(name,))) as live:
            for _ in range(_LOOKS):
                live.look()
                time.sleep(1)
            console.print(top_table(live.jobs, live.now, live.cost, "en"))
    finally:
        for rank in ranks:
            rank.kill()
    picture = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="whystall top"), flags=re.DOTALL)
    (Path(__file__).parent / "top.svg").write_text(picture)


if __name__ == "__main__":
    main()
