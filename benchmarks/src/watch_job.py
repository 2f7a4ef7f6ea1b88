"""A small training loop for benchmarks/watch_trials.py; nothing in it knows the watcher.

    watch_job.py DIRECTORY [RANK PORT]

Each step takes a batch from a loader process, computes, and logs its time to ``steps.jsonl`` in DIRECTORY. Every few
steps it takes a file lock, asks a service on loopback, appends to a metrics file with fsync, and reads features past
the page cache, if ``features`` is there. Checkpoints and evaluations come at regular distances. Files named
``do_...`` in DIRECTORY make it stall once: the harness creates them.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import multiprocessing
import os
import socket
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

STALL_S = 2.2
COMPUTE_S = 0.03
BLOCK = bytes(range(256)) * 64


def load(pipe: Any) -> None:
    while True:
        time.sleep(0.12)
        pipe.send(os.urandom(65536))


def serve(directory: Path, listener: socket.socket) -> None:
    """Answer one byte with one byte; late once if asked to."""
    connection, _ = listener.accept()
    while connection.recv(1):
        if once(directory, "do_service"):
            time.sleep(STALL_S)
        connection.send(b"1")


def once(directory: Path, name: str) -> bool:
    try:
        (directory / name).unlink()
    except FileNotFoundError:
        return False
    return True


def hold_interpreter(directory: Path) -> None:
    """Keep the interpreter's lock for one long call, once."""
    while not once(directory, "do_gil"):
        time.sleep(0.5)
    start = time.thread_time()  # not that of the threads beside it
    sum(range(2_000_000))
    each = (time.thread_time() - start) / 2_000_000
    sum(range(int(STALL_S / each)))


def next_batch(pipe: Any) -> bytes:
    return bytes(pipe.recv())


def train(batch: bytes) -> None:
    end = time.thread_time() + COMPUTE_S
    while time.thread_time() < end:
        zlib.crc32(batch)


def take_lock(directory: Path) -> None:
    with (directory / "cache.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def ask_service(connection: socket.socket) -> None:
    connection.send(b"1")
    connection.recv(1)


def log_metrics(directory: Path) -> None:
    with (directory / "disk" / "metrics.log").open("ab") as file:
        file.write(BLOCK[:512])
        file.flush()
        os.fsync(file.fileno())


def read_features(directory: Path, step: int) -> None:
    file = os.open(directory / "disk" / "features", os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 65536) as buffer:
        os.preadv(file, [buffer], (step % 64) * 65536)
    os.close(file)


def save_checkpoint(directory: Path) -> None:
    with (directory / "checkpoint.bin").open("wb") as file:
        for _ in range(400):
            zlib.crc32(BLOCK * 4)
            file.write(BLOCK * 4)


def evaluate() -> None:
    for _ in range(20):
        train(BLOCK)
        time.sleep(0.01)


def meet(peer: socket.socket) -> None:
    """Exchange one byte with the other rank, as in a barrier."""
    peer.send(b"1")
    peer.recv(1)


def paired(rank: int, port: int) -> socket.socket:
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as listener:
            return listener.accept()[0]
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)


def augment_slowly() -> None:
    time.sleep(STALL_S)


def main() -> None:
    directory = Path(sys.argv[1])
    rank = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    peer = paired(rank, int(sys.argv[3])) if len(sys.argv) > 3 else None
    log = (directory / f"steps{rank}.jsonl").open("a", buffering=1)
    ours, theirs = multiprocessing.Pipe()
    loader = multiprocessing.get_context("fork").Process(target=load, args=(theirs,), daemon=True)
    loader.start()
    (directory / "loader.pid").write_text(str(loader.pid))
    listener = socket.create_server(("127.0.0.1", 0))
    if os.fork() == 0:
        serve(directory, listener)
        os._exit(0)
    service = socket.create_connection(listener.getsockname())
    threading.Thread(target=hold_interpreter, args=(directory,), daemon=True).start()
    features = (directory / "disk" / "features").exists()
    step = 0
    while True:
        step += 1
        start = time.monotonic()
        batch = next_batch(ours)
        train(batch)
        if peer is not None:
            if rank == 1 and once(directory, "do_rank"):
                augment_slowly()
            meet(peer)
        if step % 4 == 0:
            take_lock(directory)
            ask_service(service)
        if step % 8 == 0:
            log_metrics(directory)
        if features:
            read_features(directory, step)
        if step % 100 == 0:
            save_checkpoint(directory)
        print(json.dumps({"step": step, "at": time.monotonic(), "s": time.monotonic() - start}), file=log)
        if step % 150 == 0:
            evaluate()
            print(json.dumps({"evaluation": step, "at": time.monotonic()}), file=log)


if __name__ == "__main__":
    main()
