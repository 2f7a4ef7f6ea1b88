"""Whether hybrid I/O is built, and loads."""

from __future__ import annotations

import sys

from whystall.agent_server.health import Check, State
from whystall.tools.contract.text import clean
from whystall.tools.hybrid_io import build, library

NAME = "hybrid I/O"


def hybrid_io() -> Check:
    """Of the engine and of the shim; the command that builds them where they are not."""
    missing = [name for name in build.LIBRARIES if not build.library_path(name).exists()]
    try:
        library.load()
    except library.Unavailable as error:
        found = f"not built: {', '.join(missing)}" if missing else clean(str(error), 200)
    else:
        if not missing:
            return Check(name=NAME, state=State.OK, found="engine and shim are built")
        found = f"not built: {', '.join(missing)}"
    means = "hybrid_open reads and writes as open does, and hybrid-run cannot start"
    fix = f"{clean(sys.executable)} -m whystall.tools.hybrid_io.build --force"
    try:
        build.compiler()
    except build.BuildError as error:
        fix = f"{error}; then {fix}"
    return Check(name=NAME, state=State.LIMITED, found=found, means=means, fix=fix)
