"""Check that tickets and diagnoses can be stored."""

from __future__ import annotations

import os
import sqlite3

from whystall.agent_server.doctor.report_model import Check, State
from whystall.agent_server.doctor.view import View
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.text import clean
from whystall.tools.recording.home import home

_NAME = "database"


def database(view: View) -> Check:
    """Check that the state directory is writable and its databases are intact; they are only read."""
    means = view.say("database.means")
    try:
        directory = home()
    except ToolError as error:
        return Check(name=_NAME, state=State.MISSING, found=error.message, means=means, fix=error.remedy)
    fix = view.say("database.fix")
    if not os.access(directory, os.W_OK | os.X_OK):
        found = view.say("database.read_only", path=clean(str(directory)))
        return view.missing(_NAME, found, means, fix)
    for path in sorted(directory.glob("*.db")):
        try:
            connection = sqlite3.connect(f"file:{path}?mode=rw", uri=True)
            try:
                verdict = connection.execute("pragma quick_check(1)").fetchone()[0]
            finally:
                connection.close()
        except sqlite3.Error as error:
            verdict = str(error)
        name = clean(str(path))
        if verdict != "ok":
            return view.missing(_NAME, f"{name}: {clean(verdict)}", means, view.say("database.damaged_fix", path=name))
        if not os.access(path, os.W_OK):
            return view.missing(_NAME, view.say("database.read_only", path=name), means, fix)
    return view.ok(_NAME, clean(str(directory)))
