"""Turn many small text files into packed arrays, file by file."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
from joblog import Job


def make_files(directory: Path, count: int) -> list[Path]:
    paths = [directory / f"part-{number:04}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(" ".join(str(number * 31 % 1000 + i) for i in range(3000)))
    return paths


def newest(paths: list[Path]) -> float:
    return max(path.stat().st_mtime for path in paths)  # mark: stat


def convert(path: Path) -> np.ndarray:
    words = path.read_text().split()  # mark: read
    return np.sort(np.array([float(word) for word in words]))  # mark: parse


def main() -> None:
    job = Job()
    paths = make_files(Path(job.settings["directory"]), job.settings["files"])
    job.emit("ready")
    for number in itertools.count(1):
        with job.phase("step", n=number):
            with job.phase("look"):
                newest(paths[:10])
            with job.phase("convert"):
                for path in paths[:10]:
                    convert(path)
        job.reloaded()
        paths = paths[10:] + paths[:10]


if __name__ == "__main__":
    main()
