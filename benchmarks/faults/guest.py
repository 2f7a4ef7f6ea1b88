"""Run cases in a virtual machine with a stock kernel of the kernel matrix, for features that this host's kernel lacks.

The guest runs this benchmark over the same root file system, and writes its results to a shared folder, where they
remain if it dies. It is emulated, so that a diagnosis takes about ten times as long.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.faults.results import Results
from benchmarks.faults.scenario import HERE

_ROOT = HERE.parents[1]
_LIMIT_S = 600.0  # of one diagnosis
_SETUP_S = 180.0  # of one case without its diagnoses
_BOOT_S = 300.0
_TRIES = 2  # one guest in some tens hangs: see tests/kernels/matrix.py


class NoGuest(RuntimeError):
    """No guest can be booted here."""


def run(
    series: str,
    ids: Sequence[str],
    diagnosers: Mapping[str, str],
    repeats: int,
    seed: int,
    version: str,
    results: Results,
) -> None:
    """Run what `results` does not have yet of these scenarios under a kernel series, and add it; raise NoGuest."""
    if str(_ROOT / "tests") not in sys.path:
        sys.path.append(str(_ROOT / "tests"))
    from kernels import boot, image, stock

    known = set(diagnosers)
    for _ in range(_TRIES):
        missing = [one for one in ids if len(results.of({one}, known, repeats, version)) < repeats * len(known)]
        if not missing:
            return
        with tempfile.TemporaryDirectory(prefix="guest-") as folder:
            stored = Path(folder) / "results.jsonl"
            own = Results(stored)
            own.add(*results.of(set(missing), known, repeats, version))
            argv = [sys.executable, "-m", "benchmarks.faults.run", "--only", ",".join(missing)]
            argv += ["--repeats", str(repeats), "--seed", str(seed), "--commit", version, "--limit", str(_LIMIT_S)]
            argv += ["--results", str(stored), "--out", str(Path(folder) / "report.md")]
            for name, command in diagnosers.items():
                argv += ["--diagnoser", f"{name}={command}"]
            limit_s = _BOOT_S + len(missing) * repeats * (_SETUP_S + len(known) * _LIMIT_S)
            try:
                done = boot.boot(
                    stock.fetch(series),
                    f"{shlex.join([*image.environment(), *argv])} 2>&1",
                    Path(folder),
                    limit_s,
                    silent_s=_SETUP_S + _LIMIT_S,
                    show=lambda data: os.write(2, data),
                )
            except stock.Unavailable as error:
                raise NoGuest(str(error)) from error
            finally:  # also if this run is stopped
                for result in Results(stored).of(set(missing), known, repeats, version):
                    if not results.has(result.scenario, result.repeat, result.diagnoser, version):
                        results.add(result.model_copy(update={"emulated": True}))
            if done.code is not None:
                return
            print(f"faults: the guest did not end by itself; its console:\n{done.tail()}", file=sys.stderr)
