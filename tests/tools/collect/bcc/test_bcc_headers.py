"""Headers that BCC would compile against: the running kernel's, or refused with the command that installs them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from whystall.tools.collect.bcc.headers import problem

RELEASE = "6.1.0-50-amd64"
OPTIONS = "CONFIG_SMP=y\nCONFIG_MEMCG=y\nCONFIG_CC_VERSION=1\n"


@pytest.fixture(autouse=True)
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    monkeypatch.delenv("TMPDIR", raising=False)


def tree(place: Path, release: str, *, split: bool = False) -> Path:
    (place / "include/generated").mkdir(parents=True)
    (place / "include/config").mkdir()
    (place / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{release}"\n')
    (place / "include/config/auto.conf").write_text(OPTIONS)
    if not split:
        kconfig(place)
    return place


def kconfig(place: Path) -> None:
    (place / "include/linux").mkdir(parents=True)
    (place / "include/linux/kconfig.h").write_text("")


def host(root: Path, *, headers: str | None = RELEASE, distribution: str = "debian", split: bool = False) -> Path:
    """A host whose headers are of the kernel `headers`, laid out as packages do: by absolute links."""
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text(f'ID="{distribution}"\n')
    modules = root / "lib/modules" / RELEASE
    modules.mkdir(parents=True)
    if headers is not None:
        tree(root / "usr/src/headers", headers, split=split)
        (modules / "build").symlink_to("/usr/src/headers")
        if split:
            kconfig(root / "usr/src/common")
            (modules / "source").symlink_to("/usr/src/common")
    return root


@pytest.mark.parametrize("split", [False, True])
def test_headers_of_the_running_kernel_are_taken(tmp_path: Path, split: bool) -> None:
    assert problem(host(tmp_path, split=split), RELEASE) is None


@pytest.mark.parametrize(
    "other", ["6.1.0-49-amd64", "6.1.0-50-cloud-amd64", "6.1.0-50-amd64-dbg", "", 'x"\n#define Y "']
)
def test_headers_of_another_kernel_are_refused_by_name(tmp_path: Path, other: str) -> None:
    found = problem(host(tmp_path, headers=other), RELEASE)
    assert found is not None
    assert "\n" not in found.found + found.remedy
    assert found.remedy.startswith(f"sudo apt-get install -y linux-headers-{RELEASE}")


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        ("ubuntu", f"sudo apt-get install -y linux-headers-{RELEASE}"),
        ("openEuler", f"sudo dnf install -y kernel-devel-{RELEASE}"),
        ("opensuse", "sudo zypper install -y kernel-default-devel"),
        ("gentoo", f"install the headers of kernel {RELEASE}"),
    ],
)
def test_none_are_refused_with_this_distributions_command(tmp_path: Path, distribution: str, command: str) -> None:
    found = problem(host(tmp_path, headers=None, distribution=distribution), RELEASE)
    assert found is not None
    assert f"no headers of the running kernel {RELEASE}" in found.found
    assert found.remedy.startswith(command)


def test_a_kernel_that_came_as_no_package_has_no_package_of_headers(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text("ID=debian\n")
    found = problem(tmp_path, "6.18.44-fc-v769")
    assert found is not None
    assert "apt-get" not in found.remedy
    assert "came with this kernel" in found.remedy


def test_a_link_that_leads_nowhere_is_no_headers(tmp_path: Path) -> None:
    root = host(tmp_path, headers=None)
    (root / "lib/modules" / RELEASE / "build").symlink_to("/usr/src/gone")
    found = problem(root, RELEASE)
    assert found is not None
    assert "no headers" in found.found


def test_a_kernel_built_again_with_other_options_is_told_apart(tmp_path: Path) -> None:
    root = host(tmp_path)
    (root / "proc").mkdir()
    with gzip.open(root / "proc/config.gz", "wb") as file:
        file.write(OPTIONS.replace("CONFIG_MEMCG=y", "# CONFIG_MEMCG is not set").encode())
    found = problem(root, RELEASE)
    assert found is not None
    assert "CONFIG_MEMCG" in found.found


@pytest.mark.parametrize("config", ["CONFIG_SMP=y\nCONFIG_MEMCG=y\nCONFIG_CC_VERSION=2\nCONFIG_MODULE_SIG_ALL=y\n", ""])
def test_options_that_move_nothing_may_differ(tmp_path: Path, config: str) -> None:
    root = host(tmp_path)
    (root / "boot").mkdir()
    (root / "boot" / f"config-{RELEASE}").write_text(config)
    assert problem(root, RELEASE) is None


def test_a_broken_config_is_none(tmp_path: Path) -> None:
    root = host(tmp_path)
    (root / "proc").mkdir()
    (root / "proc/config.gz").write_bytes(b"\x1f\x8b\x08 no gzip")
    assert problem(root, RELEASE) is None


def test_headers_that_are_named_are_held_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = host(tmp_path / "root")
    named = tree(tmp_path / "named", "5.10.0-1-amd64")
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(named))
    found = problem(root, RELEASE)
    assert found is not None
    assert "BCC_KERNEL_SOURCE" in found.remedy
    assert "5.10.0-1-amd64" in found.found


def test_the_kernels_own_headers_do(tmp_path: Path) -> None:
    root = host(tmp_path, headers=None)
    (root / "sys/kernel").mkdir(parents=True)
    (root / "sys/kernel/kheaders.tar.xz").write_bytes(b"")
    assert problem(root, RELEASE) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_what_a_stranger_unpacked_of_them_is_refused(tmp_path: Path) -> None:
    root = host(tmp_path, headers=None)
    (root / "sys/kernel").mkdir(parents=True)
    (root / "sys/kernel/kheaders.tar.xz").write_bytes(b"")
    unpacked = root / "tmp" / f"kheaders-{RELEASE}"
    unpacked.mkdir(parents=True)
    assert problem(root, RELEASE) is None
    os.chown(unpacked, 65534, 65534)
    found = problem(root, RELEASE)
    assert found is not None
    assert "user 65534" in found.found
