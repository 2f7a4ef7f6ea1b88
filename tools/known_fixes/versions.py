"""Versions of components: how they are written, compared, and stated by logs. Pure.

A version may be foreign text: what is no version is `UnknownVersion`, never another exception.
"""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

MOST_CHARACTERS = 64
# 8.3.rc1.alpha002 of CANN: an alpha of a candidate, which PEP 440 has no form for; it sorts before the candidate
_ALPHA = re.compile(r"\.alpha0*(\d{1,4})$", re.IGNORECASE)
# 6.1.0-27-amd64, 5.14.0-362.el9.x86_64, 6.1.115-126.197.amzn2023.x86_64, 6.6.57
_KERNEL = re.compile(r"(\d{1,3}\.\d{1,4}(?:\.\d{1,4})?)(.*)", re.DOTALL)
# #1 SMP PREEMPT_DYNAMIC Debian 6.1.115-1 (2024-11-01)
_DEBIAN = re.compile(r"#\d.*\bDebian (\d{1,3}\.\d{1,4}\.\d{1,4})[-~+]")
# Ubuntu 5.15.0-91.101-generic 5.15.131
_UBUNTU = re.compile(r"^Ubuntu \S+ (\d{1,3}\.\d{1,4}\.\d{1,4})\s*$")


class UnknownVersion(ValueError):
    """A text is no version."""


def normalised(text: str) -> str:
    """Return a version in a form of PEP 440 as far as that is possible: 8.3.rc1.alpha002 becomes 8.3.rc1.dev2."""
    return _ALPHA.sub(r".dev\1", text.strip())


def parsed(text: str) -> Version:
    """Return the version in `text`, without what builders append after a plus sign (2.7.0+cu126). Raises
    `UnknownVersion`."""
    if len(text) > MOST_CHARACTERS:
        raise UnknownVersion("too long for a version")
    try:
        return Version(normalised(text).partition("+")[0])
    except InvalidVersion:
        raise UnknownVersion(f"{text!r} is no version") from None


def base_of(text: str) -> str:
    """Return the release that a development build (2.1.0a0+fe05266) belongs to: 2.1.0. Raises `UnknownVersion`."""
    return parsed(text).base_version


def is_development(text: str) -> bool:
    """Return whether `text` is a build before its release, of which nobody knows what it contains. Raises
    `UnknownVersion`."""
    return parsed(text).is_prerelease


def upstream_kernel(release: str, version: str = "", signature: str = "") -> tuple[str, bool]:
    """Return the version of Linux on which a kernel is based, and whether a vendor built it.

    Args:
        release: as ``uname -r`` prints it.
        version: as ``uname -v``; Debian's names its version of upstream there.
        signature: the content of /proc/version_signature; Ubuntu's names it there.

    Raises `UnknownVersion` if `release` does not begin with a version.
    """
    found = _KERNEL.match(release.strip())
    if found is None:
        raise UnknownVersion(f"{release[:MOST_CHARACTERS]!r} is no kernel release")
    stated = _DEBIAN.search(version) or _UBUNTU.match(signature.strip())
    return (stated[1] if stated else found[1]), bool(found[2])
