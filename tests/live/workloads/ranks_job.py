#!/usr/bin/env python3
"""Train small models on several ranks, gloo on this machine's CPUs, each variant with its fault, profiled by Kineto.

    python ranks_job.py --out DIR [--ranks N] [--seed N] VARIANT ...    (variants: ranks_table.py)

Per variant DIR/VARIANT holds ``traces/rank*.json.gz``, ``logs/rank*.jsonl`` (each rank's own account, see
`ranks_work.Log`; steps below 0 are not in the trace) and ``truth.json`` (which ranks have the fault, and what must be
said of them).  Line ``job``: the traces of a variant are there (with the ranks' pids).  With ``--linger`` the ranks of
the last variant train on, unprofiled, until the program is stopped.

The ranks are forked from one process that has imported torch, which saves most of the time of a small job.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import ranks_work
import torch
import torch._dynamo  # what an optimizer loads when the first is made: a second of CPU, of every rank of every job
import torch.distributed as dist
from cgroups import Cgroup
from ranks_net import INTERFACE, Network
from ranks_table import ALL, Layout
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader
from workload import Workload

WARM_UP = 4
READ_S = 0.008
# Of four ranks: what a step takes, about, and what a fault adds. More ranks share the CPUs: both grow with them.
STEP_MS = 20.0
FAULT_MS = 25.0
# of a slow wire: a step moves about 0.4 MB (ddp) or 0.66 MB (mesh) over it in each direction
LINK_MBIT: dict[Layout, float] = {"ddp": 100.0, "mesh": 150.0}
# The kernel's tick is 4 ms: with shorter periods quotas are not kept, with longer ones some steps are spared.
QUOTA_PERIOD_US = 10_000
# of a CPU: less than what a rank gets anyway on a machine full of others (the kernel's least is 1 ms per period)
QUOTA_CPUS = 0.1
MORE_LAYERS = 16
MOVES_EVERY = 3
PATIENCE_S = 120.0
_PR_SET_PDEATHSIG = 1


class Job:
    """One run of one variant, into `directory`."""

    def __init__(self, name: str, world: int, seed: int, directory: Path, extra_count: int) -> None:
        self.name, self._world, self._seed, self._directory = name, world, seed, directory
        self._variant = ALL[name]
        self._extra_count = extra_count
        self._slow = self._variant.slow_ranks(world, seed)
        self._turns = random.Random(seed).sample(range(world), world)
        self._linger = False
        self._pids: dict[int, int] = {}
        for folder in ("traces", "logs"):
            (directory / folder).mkdir(parents=True, exist_ok=True)
            for old in (directory / folder).iterdir():
                old.unlink()
        truth = {"variant": name, "world": world, "seed": seed, "slow_ranks": self._slow, **asdict(self._variant)}
        (directory / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")

    def run(self, work: Workload, linger: bool) -> None:
        """Run to the end, or with `linger` until told to stop. Raises RuntimeError when a rank fails."""
        variant, self._linger = self._variant, linger
        with contextlib.ExitStack() as stack:
            store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whystall-test-")), "store")
            limited = stack.enter_context(Cgroup("cpu")) if variant.fault == "quota" else None
            slow = self._slow if variant.fault == "link" else []
            wires = Network(self._world, slow, LINK_MBIT.get(variant.layout, 0.0)) if variant.wired else None
            if wires:
                stack.enter_context(wires)
            stack.callback(self._end)
            for rank in range(self._world):
                pid = os.fork()
                if pid == 0:
                    self._be_rank(rank, store, limited, wires)
                self._pids[rank] = pid
            self._watch(work)

    def _watch(self, work: Workload) -> None:
        pids = list(self._pids.values())
        traces = [self._directory / "traces" / f"rank{rank}.json.gz" for rank in range(self._world)]
        deadline = time.monotonic() + PATIENCE_S
        told = False
        while self._pids and not work.stopped.is_set():
            for rank, pid in list(self._pids.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    del self._pids[rank]
                    if status:
                        raise RuntimeError(f"rank {rank} ended with {os.waitstatus_to_exitcode(status)}")
            if not told and all(trace.exists() for trace in traces):
                told = True
                work.emit("job", variant=self.name, directory=str(self._directory), pids=pids)
            if not told and time.monotonic() > deadline:
                raise RuntimeError(f"no traces within {PATIENCE_S} s")
            time.sleep(0.02)

    def _end(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids.clear()

    def _be_rank(self, rank: int, store: Path, limited: Cgroup | None, wires: Network | None) -> None:
        """The whole life of a forked rank; does not return."""
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, signal.SIG_DFL)
            if wires:
                wires.enter(rank)
            os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE if wires else "lo"
            if limited and rank in self._slow:
                limited.enroll(os.getpid())
            self._train(rank, store, limited)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)  # what the parent would do on its way out is not ours to do

    def _train(self, rank: int, store: Path, limited: Cgroup | None) -> None:
        torch.manual_seed(self._seed)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=self._world)
        log = ranks_work.Log(self._directory / "logs" / f"rank{rank}.jsonl")
        model = self._model(rank, log)
        batches = self._batches(rank)
        matrix = ranks_work.extra_matrix()
        if limited:
            limited.limit_cpus(QUOTA_CPUS, QUOTA_PERIOD_US)
        trace = self._directory / "traces" / f"rank{rank}.json.gz"
        partial = self._directory / f"rank{rank}.json.gz"  # nobody sees half a trace among the others
        profiler = profile(
            activities=[ProfilerActivity.CPU],
            schedule=schedule(wait=0, warmup=WARM_UP, active=self._variant.steps, repeat=1),
            on_trace_ready=lambda ready: ready.export_chrome_trace(str(partial)),
            record_shapes=True,
        )
        step = -WARM_UP
        dist.barrier()
        with profiler:
            while step < self._variant.steps:
                self._step(step, rank, batches, model, log, matrix)
                profiler.step()
                step += 1
        partial.rename(trace)
        dist.barrier()
        while self._linger:
            self._step(step, rank, batches, model, log, matrix)
            step += 1
        del batches
        dist.destroy_process_group()

    def _model(self, rank: int, log: ranks_work.Log) -> ranks_work.Model:
        layout = self._variant.layout
        if layout == "ddp":
            return ranks_work.DataParallel(log)
        if layout == "mesh":
            return ranks_work.Mesh(log)
        more = MORE_LAYERS if self._variant.fault == "layers" and rank in self._slow else 0
        return ranks_work.Stages(log, ranks_work.LAYERS + more)

    def _batches(self, rank: int) -> Iterator[Tensor]:
        variant = self._variant
        late = variant.fault == "loader" and rank in self._slow
        read_s = READ_S
        if late and variant.workers:
            # they read side by side and while the step runs: late is only what exceeds it
            read_s = (STEP_MS + FAULT_MS) * self._world / 4 / 1e3 * variant.workers
        late_s = FAULT_MS * self._world / 4 / 1e3 if late and not variant.workers else 0.0
        steps = range(-WARM_UP, variant.steps)
        times_s = [read_s + late_s * variant.strength(step) for step in steps]
        count = sys.maxsize if self._linger else len(steps)
        loader = DataLoader(
            ranks_work.Samples(count, variant.rows, times_s),
            batch_size=None,
            num_workers=variant.workers,
            multiprocessing_context="fork" if variant.workers else None,
        )
        return iter(loader)

    def _step(
        self,
        step: int,
        rank: int,
        batches: Iterator[Tensor],
        model: ranks_work.Model,
        log: ranks_work.Log,
        matrix: Tensor,
    ) -> None:
        fault = self._variant.fault
        turn = fault == "moving" and self._turns[step // MOVES_EVERY % self._world] == rank
        strength = self._variant.strength(step) if fault == "compute" and rank in self._slow else float(turn)
        if self._variant.shape == "drift":
            strength *= STEP_MS / FAULT_MS / 100
        more = round(self._extra_count * strength)
        with log.timed("step"):
            with log.timed("load"):
                batch = next(batches)
            if more:
                with log.timed("extra"):
                    ranks_work.extra(matrix, more)
            model.step(batch)
        log.step(step)


def main() -> None:
    """Run the variants one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+", choices=ALL, metavar="VARIANT")
    parser.add_argument("--out", required=True)
    parser.add_argument("--ranks", type=int, default=4, help="an even number, at least 4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--linger", action="store_true")
    work = Workload(parser)
    options = work.options
    torch.set_num_threads(1)
    extra_ms = ranks_work.one_extra_ms()
    fault_ms = FAULT_MS * options.ranks / 4
    work.start(extra_ms=extra_ms)
    for name in options.variants:
        directory = Path(options.out, name)
        job = Job(name, options.ranks, options.seed, directory, max(1, round(fault_ms / extra_ms)))
        job.run(work, options.linger and name == options.variants[-1])
        if work.stopped.is_set():
            break
    work.emit("end")


if __name__ == "__main__":
    main()
