"""One command in a virtual machine with a stock kernel, over this machine's root file system.

virtme-ng puts QEMU's emulation (no KVM: hosts of CI have none, or a broken one) under a kernel whose root is this
machine's, read-only beneath an overlay in the guest's memory: what the guest writes is gone with it, but for one
folder.
"""

from __future__ import annotations

import math
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels.image import TREE, make
from kernels.stock import Kernel, Unavailable, found

CPUS = 2
MEMORY = "3G"
TAIL = 60


@dataclass(frozen=True)
class Booted:
    code: int | None
    """Exit status of the command; None if the guest never said one."""
    timed_out: bool
    """It was killed: at its limit, or because it was silent."""
    silent: bool
    """It was killed because its command said nothing for too long."""
    seconds: float
    console: Path
    """All the kernel wrote on its serial console, and what the command wrote to its standard error."""

    @property
    def fine(self) -> bool:
        return self.code == 0 and not self.timed_out

    def tail(self) -> str:
        """The end of the console, for whoever must find out why a guest died."""
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-TAIL:])


def boot(
    kernel: Kernel,
    command: str,
    shared: Path,
    limit_s: float,
    *,
    silent_s: float = math.inf,
    image: Path | None = None,
    show: Callable[[bytes], object] | None = None,
) -> Booted:
    """Run a shell command as root under a kernel, in this tree.

    At the limit, when the command says nothing for `silent_s` seconds, or if this process dies, the guest is killed,
    and nothing of it remains but `shared`.

    Args:
        shared: the folder that the guest may write to, at the same path. Of the harness there: command.sh, code,
            booted (seconds until the command began), console.log, and tree.img if no image was given.
        image: what `image.make` made.
        show: is given what the command prints, as it comes.

    Raises:
        Unavailable: virtme-ng, QEMU or busybox is missing.
    """
    shared.mkdir(parents=True, exist_ok=True)
    for left in ("code", "booted"):
        (shared / left).unlink(missing_ok=True)
    if image is None:
        image = shared / "tree.img"
        make(image, kernel)
    (shared / "command.sh").write_text(f"cd {shlex.quote(str(TREE))}\n{command}\n")
    started = time.monotonic()
    # Pipes: QEMU opens what it inherits once per channel, and in a plain file these would write over each other.
    guest = subprocess.Popen(
        [*_contained(), *_machine(kernel, shared, image)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(shared), "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"},
    )
    console = shared / "console.log"
    try:
        with console.open("wb", buffering=0) as log:
            over = _copy(guest, started + limit_s, silent_s, log.write, show or log.write)
    finally:
        _end(guest)
        if image.parent == shared:
            image.unlink(missing_ok=True)
    said = (shared / "code").read_text().strip() if (shared / "code").exists() else ""
    code = int(said) if said.isdigit() else None
    return Booted(code, over is not None, over == "silent", time.monotonic() - started, console)


def _machine(kernel: Kernel, shared: Path, image: Path) -> list[str]:
    """virtme-run makes the initramfs and the devices; our own `init` takes over from there (a second -append wins)."""
    virtme, busybox = Path(sys.prefix, "bin", "virtme-run"), found("busybox")
    for program, package in ((virtme.exists(), "virtme-ng of PyPI"), (busybox, "busybox-static")):
        if not program:
            raise Unavailable(f"guests cannot be booted: no {package}")
    if found("qemu-system-x86_64") is None:
        raise Unavailable("guests cannot be booted: no qemu-system-x86_64 (package qemu-system-x86)")
    options = (
        "console=ttyS0 earlyprintk=serial,ttyS0,115200 panic=-1 loglevel=4",
        "oops=panic",
        # Both halve the time under emulation: mitigations switch page tables, and the HPET is a device of QEMU's.
        "mitigations=off tsc=reliable",
        f"whystall.kernel={kernel.root} whystall.shared={shared}",
        f"init={busybox} -- sh {TREE / 'tests/kernels/init.sh'} {busybox} {found('modprobe')}",
    )
    files = "local,security_model=none,multidevs=remap"
    return [
        *(str(virtme), "--kimg", str(kernel.image), "--mods", "auto", "--disable-kvm", "--disable-microvm"),
        *("--force-9p", "--show-boot-console", "--user", "root", "--cpus", str(CPUS), "--memory", MEMORY),
        *("--script-sh", "true", "--qemu-opts"),
        # CPUs by turns: side by side QEMU 7.2's now and then run a breakpoint that another has replaced, which hangs a
        # 5.10 or 6.1 that attaches to tracepoints, and is an oops on 6.12.
        *("-accel", "tcg,thread=single"),
        *("-fsdev", f"{files},id=host,path=/,readonly=on", "-fsdev", f"{files},id=shared,path={shared}"),
        *("-device", "virtio-9p-pci,fsdev=host,mount_tag=whystall.host"),
        *("-device", "virtio-9p-pci,fsdev=shared,mount_tag=whystall.shared"),
        *("-drive", f"file={image},format=raw,if=virtio,readonly=on", "-append", " ".join(options)),
    ]


def _contained() -> list[str]:
    """A PID namespace that dies with us, where we may make one: QEMU is the grandchild of a shell of virtme-run."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return []
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--"]


def _copy(
    guest: subprocess.Popen[bytes],
    deadline: float,
    silent_s: float,
    log: Callable[[bytes], object],
    show: Callable[[bytes], object],
) -> str | None:
    """Copy what the guest says until it ends; if it must be killed, why: ``limit`` or ``silent``."""
    heard = time.monotonic()
    with selectors.DefaultSelector() as pipes:
        for pipe, sink in ((guest.stdout, show), (guest.stderr, log)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            pipes.register(pipe, selectors.EVENT_READ, sink)
        while pipes.get_map():
            now = time.monotonic()
            if now >= min(deadline, heard + silent_s):
                return "limit" if now >= deadline else "silent"
            for key, _ in pipes.select(min(deadline - now, 1)):
                if data := os.read(key.fd, 1 << 16):
                    key.data(data)
                    if key.fileobj is guest.stdout:
                        heard = now
                else:
                    pipes.unregister(key.fileobj)
            if guest.poll() is not None and not pipes.select(0):
                break
    return None


def _end(guest: subprocess.Popen[bytes]) -> None:
    if guest.poll() is None:
        os.killpg(guest.pid, signal.SIGKILL)
    guest.wait()
    for pipe in (guest.stdout, guest.stderr):
        if pipe is not None:
            pipe.close()


if __name__ == "__main__":
    from kernels.stock import fetch

    try:
        with tempfile.TemporaryDirectory(prefix="whystall-guest-") as folder:
            done = boot(
                fetch(sys.argv[1]),
                " ".join(sys.argv[3:]),
                Path(folder),
                float(sys.argv[2]),
                show=lambda data: os.write(1, data),
            )
            if done.timed_out or done.code is None:
                print(done.tail(), file=sys.stderr)
            sys.exit(124 if done.timed_out else 125 if done.code is None else done.code)
    except Unavailable as error:
        sys.exit(f"whystall: {error}")
