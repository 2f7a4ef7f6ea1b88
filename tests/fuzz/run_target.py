"""Fuzz one target under atheris, guided by coverage; the status is that of libFuzzer: 0 if nothing was found.

usage: python -m fuzz.run_target NAME FOLDER [options of libFuzzer: -max_total_time=5 -runs=1000000 ...]

FOLDER keeps the inputs that reach new code, and as ``crash-*`` or ``timeout-*`` those that found something.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import atheris

_SEED_LIMIT, _MEMORY_MB, _SLOWEST_S = 200_000, 3000, 60


def main() -> None:
    name, folder, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["whystall"], enable_loader_override=False):
        from fuzz.targets import TARGETS

        target = TARGETS[name]
        corpus = Path(folder) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as work:
            for number, seed in enumerate(target.seeds()):
                (corpus / f"seed-{number}").write_bytes(seed[:_SEED_LIMIT])
                target.call(seed[:_SEED_LIMIT], Path(work))  # a seed is accepted; what is imported late is instrumented
    dictionary = Path(folder) / "tokens.txt"
    escaped = ["".join(f"\\x{byte:02x}" for byte in token.encode()) for token in target.tokens]
    dictionary.write_text("".join(f'"{token}"\n' for token in ("\\x00", *escaped)))
    work_folder = tempfile.TemporaryDirectory()

    def one(data: bytes) -> None:
        try:
            target.call(data, Path(work_folder.name))
        except target.refusals:
            return

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = [f"-timeout={_SLOWEST_S}", f"-rss_limit_mb={_MEMORY_MB}", f"-max_len={_SEED_LIMIT}"]
    outputs = [f"-artifact_prefix={folder}/", f"-dict={dictionary}"]
    atheris.Setup([sys.argv[0], *limits, *outputs, *options, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
