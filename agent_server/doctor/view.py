"""What a check looks at, and the language it speaks."""

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
    """The files of a host below `root` (tests have one of their own), words in `lang`, for the user `uid`."""

    root: Path = Path("/")
    lang: Lang = "en"
    uid: int = field(default_factory=os.geteuid)

    def path(self, absolute: str) -> Path:
        """`absolute` below the root."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str | None:
        """The file as inert text of one line, stripped; None where it cannot be read."""
        raw = self.read_bytes(absolute)
        return None if raw is None else clean(raw.strip())

    def lines(self, absolute: str) -> list[str]:
        """The lines of a file, each inert; none where it cannot be read."""
        raw = self.read_bytes(absolute) or b""
        return [clean(line.replace(b"\t", b" "), 4096) for line in raw.split(b"\n") if line]

    def read_bytes(self, absolute: str) -> bytes | None:
        """The first MiB of the file; None where it cannot be read."""
        try:
            with self.path(absolute).open("rb") as file:
                return file.read(_READ_BYTES)
        except OSError:
            return None

    def exists(self, absolute: str) -> bool:
        """Whether it is there, as far as we may look."""
        try:
            return self.path(absolute).exists()
        except OSError:
            return False

    def names(self, directory: str, pattern: str = "*") -> list[str]:
        """Names in `directory` that match, sorted; none where it cannot be listed."""
        try:
            return sorted(clean(path.name) for path in self.path(directory).glob(pattern))
        except OSError:
            return []

    def say(self, code: str, **named: object) -> str:
        """The words of `code` in our language."""
        return say(self.lang, code, **named)

    def reason(self, text: str) -> str:
        """Why something does not work, as the code says it, in our language where it has words."""
        return in_words(self.lang, text)

    def sudo(self, command: str) -> str:
        """`command` as this user must write it to be root: containers have root, and no sudo."""
        return command if self.uid == 0 else f"sudo {command}"

    def ok(self, name: str, found: str) -> Check:
        """All is well: `found`."""
        return Check(name=name, state=State.OK, found=found)

    def limited(self, name: str, found: str, means: str, fix: str) -> Check:
        """It works, but not in full."""
        return Check(name=name, state=State.LIMITED, found=found, means=means, fix=fix)

    def missing(self, name: str, found: str, means: str, fix: str) -> Check:
        """It is not there, or unusable."""
        return Check(name=name, state=State.MISSING, found=found, means=means, fix=fix)


ENGLISH = View()
"""This host, in English."""
