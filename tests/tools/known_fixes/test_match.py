"""Matching versions and signatures with defects: a version alone is no claim."""

from __future__ import annotations

from typing import Any

import pytest

from whystall.tools.known_fixes.catalogue import Defect
from whystall.tools.known_fixes.match import Found, Known, Signature, known_defects
from whystall.tools.known_fixes.versions import UnknownVersion, parsed, upstream_kernel


def defect(**changes: Any) -> Defect:
    plain = {
        "id": "one",
        "component": "nccl",
        "affected": ">=2.18.1,<2.19.1",
        "fixed": "2.19.1",
        "kind": "hang",
        "symptom": {"en": "hangs", "zh": "挂起"},
        "causes": ["collective_hang"],
        "functions": ["ncclCommAbort"],
        "xids": [119],
        "texts": [["soft lockup", "nfs"]],
        "sources": [{"url": "https://example.org/1", "names": ["2.19.1"]}],
    }
    return Defect.model_validate(plain | changes)


NOTHING = Signature()


def stand(signature: Signature = NOTHING, arch: str = "", of: Defect | None = None, **found: Found) -> Known:
    (known,) = known_defects({name: [one] for name, one in found.items()}, signature, arch, [of or defect()])
    return known


@pytest.mark.parametrize(
    ("signature", "standing", "shown"),
    [
        (Signature(), "affected", ()),
        (Signature(causes=frozenset({"deadlock"}), texts=("something else",)), "affected", ()),
        (Signature(causes=frozenset({"collective_hang"})), "possible", ("cause collective_hang",)),
        (Signature(functions=frozenset({"ncclCommAbort"})), "relevant", ("function ncclCommAbort",)),
        (Signature(functions=frozenset({"c10d::NCCLComm::ncclCommAbort"})), "relevant", ("function ncclCommAbort",)),
        (Signature(texts=("#3 in ncclCommAbort () from x",)), "relevant", ("function ncclCommAbort",)),
        (Signature(texts=("ncclCommAbortAll",)), "affected", ()),
        (Signature(xids=frozenset({119})), "relevant", ("Xid 119",)),
        (Signature(texts=("watchdog: BUG: Soft Lockup in nfs_read",)), "relevant", ("text soft lockup, nfs",)),
        (Signature(texts=("soft lockup", "nfs")), "affected", ()),
    ],
)
def test_only_what_identifies_the_defect_makes_it_relevant(
    signature: Signature, standing: str, shown: tuple[str, ...]
) -> None:
    known = stand(signature, nccl=Found("2.18.5+cuda12.1"))
    assert (known.standing, known.shown) == (standing, shown)


@pytest.mark.parametrize(
    ("version", "standing"),
    [("2.19.1", "fixed"), ("2.27.3", "fixed"), ("2.17.1", "unaffected"), ("main", "unknown"), ("2" * 100, "unknown")],
)
def test_other_versions_are_never_relevant(version: str, standing: str) -> None:
    shows = Signature(frozenset({"collective_hang"}), frozenset({"ncclCommAbort"}), frozenset({119}))
    assert stand(shows, nccl=Found(version)).standing == standing


def test_a_version_that_was_not_seen_is_named() -> None:
    known = stand(Signature(xids=frozenset({119})))
    assert (known.standing, known.unseen) == ("unknown", ("nccl",))


def test_a_version_of_one_process_suffices() -> None:
    both = {"nccl": [Found("2.27.3"), Found("2.18.1")]}
    (known,) = known_defects(both, Signature(), among=[defect()])
    assert (known.standing, known.version) == ("affected", "2.18.1")


KERNEL = {"component": "kernel", "affected": ">=6.1.115,<6.1.119", "fixed": "6.1.119"}


def test_a_kernel_of_a_vendor_is_never_certain() -> None:
    of = defect(**KERNEL)
    assert stand(of=of, kernel=Found("6.1.116")).certain
    vendor = stand(of=of, kernel=Found("6.1.116", vendor_built=True))
    assert (vendor.standing, vendor.certain) == ("affected", False)


def test_the_name_of_a_vendors_kernel_does_not_place_it_within_a_series() -> None:
    # 6.1.0-27-amd64 may be any 6.1.x; but it is below 6.2
    assert stand(of=defect(**KERNEL), kernel=Found("6.1.0", vendor_built=True)).standing == "unknown"
    below = defect(component="kernel", affected="<6.2", fixed="6.2")
    assert stand(of=below, kernel=Found("6.1.0", vendor_built=True)).standing == "affected"


def test_a_development_build_is_not_certain() -> None:
    of = defect(component="torch", affected="==2.1.0", fixed="2.1.1")
    known = stand(of=of, torch=Found("2.1.0a0+fe05266"))
    assert (known.standing, known.certain) == ("affected", False)


def test_the_architecture_counts() -> None:
    of = defect(arch="aarch64")
    assert stand(arch="x86_64", of=of, nccl=Found("2.18.1")).standing == "unaffected"
    assert stand(arch="aarch64", of=of, nccl=Found("2.18.1")).certain
    assert not stand(of=of, nccl=Found("2.18.1")).certain


def test_all_components_must_be_affected() -> None:
    of = defect(**{"with": {"kernel": ">=6.8"}})
    assert stand(of=of, nccl=Found("2.18.1"), kernel=Found("6.9.1")).standing == "affected"
    assert stand(of=of, nccl=Found("2.18.1"), kernel=Found("6.1.1")).standing == "unaffected"
    known = stand(of=of, nccl=Found("2.18.1"))
    assert (known.standing, known.unseen) == ("unknown", ("kernel",))


@pytest.mark.parametrize(
    ("release", "version", "signature", "expected"),
    [
        ("6.6.57", "#1 SMP Thu Oct 17", "", ("6.6.57", False)),
        ("6.1.0-27-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.115-1 (2024-11-01)", "", ("6.1.115", True)),
        ("5.15.0-91-generic", "#101-Ubuntu SMP", "Ubuntu 5.15.0-91.101-generic 5.15.131\n", ("5.15.131", True)),
        ("5.14.0-362.8.1.el9_3.x86_64", "#1 SMP", "", ("5.14.0", True)),
        # the line of a kernel log: the compiler's package is not the kernel's version
        ("6.1.0-27-amd64", "(gcc-12 (Debian 12.2.0-14)) #1 SMP Debian 6.1.115-1", "", ("6.1.115", True)),
    ],
)
def test_the_version_of_upstream_behind_a_kernel(
    release: str, version: str, signature: str, expected: tuple[str, bool]
) -> None:
    assert upstream_kernel(release, version, signature) == expected


@pytest.mark.parametrize("text", ["", "x", "\0", "9" * 5000, "1.2.3; rm -rf /"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UnknownVersion):
        parsed(text)
    with pytest.raises(UnknownVersion):
        upstream_kernel(f"v{text}")
