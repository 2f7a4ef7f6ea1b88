"""What one rank of a job does in a step, in three layouts. Imports torch: only the processes of a job load this."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

WIDTH = 128
LAYERS = 4
MICROBATCHES = 2


class Log:
    """One rank's own account, JSON lines: what it did in each step and how long, by its own clock, ms."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("w", encoding="utf-8", buffering=1)
        self._spent: dict[str, float] = {}
        self._cpu_ns = time.process_time_ns()

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Time a part of the step; parts of one name add up."""
        start = time.monotonic_ns()
        yield
        self._spent[what] = self._spent.get(what, 0.0) + (time.monotonic_ns() - start) / 1e6

    def step(self, number: int) -> None:
        """End the step."""
        spent = {f"{what}_ms": round(ms, 3) for what, ms in self._spent.items()}
        cpu_ns, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        spent["cpu_ms"] = round((self._cpu_ns - cpu_ns) / 1e6, 3)
        self._stream.write(json.dumps({"step": number, **spent}) + "\n")
        self._spent.clear()


class Samples(Dataset[Tensor]):
    """Batches that take `read_s` each to read, as from a storage that answers late; the last time ever after."""

    def __init__(self, count: int, rows: int, read_s: Sequence[float]) -> None:
        self._count, self._rows, self._read_s = count, rows, read_s

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        if index >= self._count:
            raise IndexError(index)
        time.sleep(self._read_s[min(index, len(self._read_s) - 1)])
        return torch.full((self._rows, WIDTH), 1.0 / (index + 1))


def extra_matrix() -> Tensor:
    """What `extra` multiplies: few and large operations keep the trace small."""
    return torch.rand(384, 384)


def extra(matrix: Tensor, count: int) -> Tensor:
    """`count` multiplications more than the other ranks do."""
    for _ in range(count):
        matrix = torch.tanh(matrix @ matrix)
    return matrix


def one_extra_ms() -> float:
    """How long one of them takes here when nobody disturbs."""
    matrix = extra_matrix()
    best = float("inf")
    for _ in range(20):
        start = time.monotonic_ns()
        matrix = extra(matrix, 1)
        best = min(best, (time.monotonic_ns() - start) / 1e6)
    return best


def layers(count: int) -> nn.Sequential:
    """A model of that many layers."""
    return nn.Sequential(*(module for _ in range(count) for module in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


class Model(Protocol):
    """What a rank trains."""

    def step(self, batch: Tensor) -> None:
        """One step with one batch."""


class DataParallel:
    """PyTorch's own DistributedDataParallel over all ranks."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._model = nn.parallel.DistributedDataParallel(layers(LAYERS))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)

    def step(self, batch: Tensor) -> None:
        """Forward, backward with the gradients' all_reduce in it, update."""
        with self._log.timed("forward"):
            loss = self._model(batch).square().mean()
        with self._log.timed("backward"):
            torch.autograd.backward(loss)
        with self._log.timed("update"):
            self._optimizer.step()
            self._optimizer.zero_grad()


class Gradients:
    """All gradients of a model in one buffer that a group shares, as DistributedDataParallel keeps its buckets."""

    def __init__(self, model: nn.Module, group: dist.ProcessGroup, log: Log) -> None:
        self._group, self._log = group, log
        parameters = list(model.parameters())
        self._flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
        parts = torch.split(self._flat, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def share(self) -> None:
        """Sum them over the group."""
        with self._log.timed("gradients"):
            dist.all_reduce(self._flat, group=self._group)

    def clear(self) -> None:
        """Begin anew."""
        self._flat.zero_()


class Mesh:
    """Rows of two ranks that share each layer's result, columns that share gradients."""

    def __init__(self, log: Log) -> None:
        self._log = log
        rank, world = dist.get_rank(), dist.get_world_size()
        rows = [[first, first + 1] for first in range(0, world, 2)]
        columns = [list(range(side, world, 2)) for side in (0, 1)]
        # every rank makes every group, in the same order
        self._row = [dist.new_group(ranks, group_desc="rows") for ranks in rows][rank // 2]
        column = [dist.new_group(ranks, group_desc="columns") for ranks in columns][rank % 2]
        self._layers = layers(LAYERS)
        self._gradients = Gradients(self._layers, column, log)
        self._optimizer = torch.optim.SGD(self._layers.parameters(), lr=1e-3)

    def step(self, batch: Tensor) -> None:
        """Forward with an all_reduce of the row in the middle and at the end, backward, all_reduce of the column."""
        half = LAYERS  # modules: a layer and its tanh
        with self._log.timed("forward"):
            middle = self._layers[:half](batch)
            self._share(middle, "row")
            last = self._layers[half:](middle)
            self._share(last, "row")
            loss = last.square().mean()
        with self._log.timed("backward"):
            torch.autograd.backward(loss)
        self._gradients.share()
        with self._log.timed("update"):
            self._optimizer.step()
            self._gradients.clear()

    def _share(self, part: Tensor, what: str) -> None:
        with self._log.timed(what):
            dist.all_reduce(part.detach().clone(), group=self._row)


class Stages:
    """Two pipeline stages: the lower half of the ranks feeds the upper half; each stage shares its gradients."""

    def __init__(self, log: Log, count: int) -> None:
        self._log = log
        rank, world = dist.get_rank(), dist.get_world_size()
        half = world // 2
        stages = [list(range(half)), list(range(half, world))]
        group = [dist.new_group(ranks, group_desc=f"stage{i}") for i, ranks in enumerate(stages)][rank // half]
        self._first = rank < half
        self._peer = rank + half if self._first else rank - half
        self._layers = layers(count)
        self._gradients = Gradients(self._layers, group, log)
        self._optimizer = torch.optim.SGD(self._layers.parameters(), lr=1e-3)

    def step(self, batch: Tensor) -> None:
        """All microbatches forward, then backward; the gradients' all_reduce; update."""
        done: list[tuple[Tensor, Tensor]] = []
        for piece in batch.chunk(MICROBATCHES):
            with self._log.timed("receive"):
                if not self._first:
                    dist.recv(piece := torch.empty_like(piece), self._peer)
            with self._log.timed("forward"):
                given = piece.requires_grad_(not self._first)
                result = self._layers(given)
            done.append((given, result))
            with self._log.timed("send"):
                if self._first:
                    dist.send(result.detach(), self._peer)
        for given, result in done:
            gradient = torch.empty_like(result)
            with self._log.timed("receive"):
                if self._first:
                    dist.recv(gradient, self._peer)
            with self._log.timed("backward"):
                if self._first:
                    torch.autograd.backward(result, gradient)
                else:
                    torch.autograd.backward(result.square().mean())
            with self._log.timed("send"):
                if not self._first:
                    assert given.grad is not None
                    dist.send(given.grad, self._peer)
        self._gradients.share()
        with self._log.timed("update"):
            self._optimizer.step()
            self._gradients.clear()
