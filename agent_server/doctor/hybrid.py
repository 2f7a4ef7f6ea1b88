"""Check that hybrid I/O is built and loads."""

from __future__ import annotations

import sys

from whystall.agent_server.doctor.report_model import Check
from whystall.agent_server.doctor.view import ENGLISH, View
from whystall.tools.contract.text import clean
from whystall.tools.hybrid_io import build, library

NAME = "hybrid I/O"


def hybrid_io(view: View = ENGLISH) -> Check:
    """Check the engine and the shim, with the command that builds them."""
    missing = [name for name in build.LIBRARIES if not build.library_path(name).exists()]
    try:
        library.load()
    except library.Unavailable as error:
        found = view.say("hybrid.not_built", names=", ".join(missing)) if missing else clean(str(error), 200)
    else:
        if not missing:
            return view.ok(NAME, view.say("hybrid.built"))
        found = view.say("hybrid.not_built", names=", ".join(missing))
    fix = f"{clean(sys.executable)} -m whystall.tools.hybrid_io.build --force"
    try:
        build.compiler()
    except build.BuildError as error:
        fix = view.say("hybrid.then", first=error, second=fix)
    return view.limited(NAME, found, view.say("hybrid.means"), fix)
