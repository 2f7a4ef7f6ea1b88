"""The host as checks see it, and their language."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from whystall.agent_server.doctor.report_model import Check, State
from whystall.prompts.doctor import say
from whystall.prompts.reasons import in_words
from whystall.tools.contract.text import clean

Lang = Literal["en", "zh"]
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class View:
    """The files of a host below `root` (tests use their own), texts in `lang`, for the user `uid`."""

    root: Path = Path("/")
    lang: Lang = "en"
    uid: int = field(default_factory=os.geteuid)

    def path(self, absolute: str) -> Path:
        """Return `absolute` below the root."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str | None:
        """Return the file as one stripped line of inert text; None if it cannot be read."""
        raw = self.read_bytes(absolute)
        return None if raw is None else clean(raw.strip())

    def lines(self, absolute: str) -> list[str]:
        """Return the lines of a file, each inert; none if it cannot be read."""
        raw = self.read_bytes(absolute) or b""
        return [clean(line.replace(b"\t", b" "), 4096) for line in raw.split(b"\n") if line]

    def read_bytes(self, absolute: str) -> bytes | None:
        """Return the first MiB of the file; None if it cannot be read."""
        try:
            with self.path(absolute).open("rb") as file:
                return file.read(_READ_BYTES)
        except OSError:
            return None

    def exists(self, absolute: str) -> bool:
        """Return whether it exists and we may see it."""
        try:
            return self.path(absolute).exists()
        except OSError:
            return False

    def names(self, directory: str, pattern: str = "*") -> list[str]:
        """Return the names in `directory` that match, sorted; none if it cannot be listed."""
        try:
            return sorted(clean(path.name) for path in self.path(directory).glob(pattern))
        except OSError:
            return []

    def say(self, code: str, **named: object) -> str:
        """Return the text of `code`."""
        return say(self.lang, code, **named)

    def reason(self, text: str) -> str:
        """Return the reason why something does not work, translated if a translation exists."""
        return in_words(self.lang, text)

    def sudo(self, command: str) -> str:
        """Return `command` as this user must write it to be root: containers have root, and no sudo."""
        return command if self.uid == 0 else f"sudo {command}"

    def ok(self, name: str, found: str) -> Check:
        """Return a check without a problem."""
        return Check(name=name, state=State.OK, found=found)

    def limited(self, name: str, found: str, means: str, fix: str) -> Check:
        """Return a check of something that works only in part."""
        return Check(name=name, state=State.LIMITED, found=found, means=means, fix=fix)

    def missing(self, name: str, found: str, means: str, fix: str) -> Check:
        """Return a check of something that is missing or unusable."""
        return Check(name=name, state=State.MISSING, found=found, means=means, fix=fix)


ENGLISH = View()
"""This host, in English."""
