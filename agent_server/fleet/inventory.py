"""The hosts that may be asked: name, MCP address, token and certificate authority of each.

A host is known if the settings name it, or `allow` permits it. Tokens are sent to known hosts alone: a caller, who may
be a language model, chooses only among these.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from whystall.agent_server.fleet.hostlist import LIMIT, expand
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.fleet import FleetSettings

_FILE_LIMIT = 4 << 20


class Token(Protocol):
    """Where the token of a host is read; see `Secret.read`."""

    def read(self, name: str, /) -> str:
        """Return it."""


@dataclass(frozen=True)
class Host:
    """One host. `identity`: its replies must state this name; not demanded of a host that is named by its address."""

    name: str
    url: str
    token: Token | None = None
    ca_file: Path | None = None
    identity: bool = True


class Inventory:
    """The hosts of `settings`."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings

    @cached_property
    def names(self) -> list[str]:
        """The hosts asked by default. Raises `ToolError` (bad_argument, io_error): a wrong hostlist, or file."""
        given = expand(self.settings.hosts) if self.settings.hosts.strip() else []
        if self.settings.hosts_file is not None:
            given += read_hosts(self.settings.hosts_file)
        return list(dict.fromkeys([*given, *self.settings.overrides]))[:LIMIT]

    def select(self, hosts: str | None) -> list[Host]:
        """Return the hosts of the hostlist `hosts`, None: all that are asked by default.

        Raises `ToolError` (bad_argument): none is set up, or one is not known.
        """
        names = self.names if hosts is None else expand(hosts)
        if not names:
            message = "no hosts are set up" if hosts is None else "hosts: none is named"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "set hosts in [fleet] of the settings, or name some")
        if unknown := [name for name in names if not self.knows(name)]:
            message = f"{len(unknown)} hosts may not be asked, the first is {unknown[0]}"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "add them to hosts or allow in [fleet] of the settings")
        return [self.host(name) for name in names]

    def knows(self, name: str) -> bool:
        """Return whether the host `name` may be asked."""
        return name in self.known or any(fnmatchcase(name, glob) for glob in self._globs) or self._in_network(name)

    def host(self, name: str) -> Host:
        """Return how the host `name` is reached."""
        settings, own = self.settings, self.settings.overrides.get(name)
        return Host(
            name,
            (own and own.url) or settings.url.replace("{host}", f"[{name}]" if ":" in name else name),
            (own and own.token) or settings.token,
            (own and own.ca_file) or settings.ca_file,
            settings.identity and _address(name) is None and name != "localhost",
        )

    @cached_property
    def known(self) -> dict[str, None]:
        """The hosts that the settings name, not by a pattern or network. Raises as `names`."""
        lists = [one for one in self.settings.allow if "*" not in one and "/" not in one]
        return dict.fromkeys([*self.names, *(name for one in lists for name in expand(one))])

    @cached_property
    def _globs(self) -> list[str]:
        return [one for one in self.settings.allow if "*" in one]

    def _in_network(self, name: str) -> bool:
        address = _address(name)
        return address is not None and any(address in network for network in self._networks)

    @cached_property
    def _networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        return [ipaddress.ip_network(one) for one in self.settings.allow if "/" in one]


def read_hosts(path: Path) -> list[str]:
    """Return the hosts in the file `path`: a hostlist per line, ``#`` begins a comment.

    Raises `ToolError`: io_error; bad_argument for another content.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_FILE_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        raise ToolError(ErrorCode.IO_ERROR, f"cannot read {path}: {why}", "give a readable file") from None
    if len(raw) > _FILE_LIMIT:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path} is too long for a list of hosts", "give a hostlist per line")
    lines = (line.partition("#")[0].strip() for line in raw.decode("utf-8", "replace").splitlines())
    names = list(dict.fromkeys(name for line in lines if line for name in expand(line)))
    if len(names) > LIMIT:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path} names more than {LIMIT} hosts", "ask in parts")
    return names


def same_host(stated: str, name: str) -> bool:
    """Return whether the host that calls itself `stated` is `name`; either may lack the domain."""
    one, other = (re.sub(r"\.$", "", text.casefold()) for text in (stated, name))
    if "." in one and "." in other:
        return one == other
    return one.partition(".")[0] == other.partition(".")[0]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
