"""One command in a virtual machine with a stock kernel, over this machine's root file system.

virtme-ng puts QEMU's emulation (no KVM: hosts of CI have none, or a broken one) under a kernel whose root is this machine's
by 9p, read-only beneath an overlay in the guest's memory: whatever the guest writes is gone with it, but for one folder.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels.stock import Kernel

CPUS = 2
MEMORY = "3G"
TAIL = 60
TREE = Path(__file__).parents[2]
WRITABLE = ("/etc", "/home", "/lib", "/opt", "/root", "/srv", "/tmp", "/usr", "/var")
"""What else a command in the guest may write to; it stays in the guest's memory."""


@dataclass(frozen=True)
class Booted:
    code: int | None
    """Exit status of the command; None if the guest never said one."""
    timed_out: bool
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
    kernel: Kernel, command: str, shared: Path, limit_s: float, show: Callable[[bytes], object] | None = None
) -> Booted:
    """Run a shell command as root under a kernel; `shared` is the folder that the guest may write to, at the same path.

    Files of the harness in `shared`: command.sh, code, console.log. At the limit, or if this process dies, the guest is
    killed, and nothing of it remains.
    """
    shared.mkdir(parents=True, exist_ok=True)
    (shared / "code").unlink(missing_ok=True)
    script = shared / "command.sh"
    script.write_text(_PREAMBLE.format(sources=shlex.quote(str(kernel.root / "usr/src"))) + command + "\n")
    inside = f"bash {shlex.quote(str(script))}; echo $? > {shlex.quote(str(shared / 'code'))}; sync"
    runner = Path(sys.executable).parent / "virtme-run"
    argv = [
        *_contained(),
        str(runner if runner.exists() else "virtme-run"),
        *("--kimg", str(kernel.image), "--disable-kvm", "--disable-microvm", "--force-9p", "--show-boot-console"),
        *("--cpus", str(CPUS), "--memory", MEMORY, "--user", "root", "--mods", "auto", "--cwd", str(TREE)),
        *(f"--overlay-rwdir={place}" for place in (*WRITABLE, str(TREE))),
        *(f"--rwdir={shared}", "--script-sh", inside),
    ]
    started = time.monotonic()
    # Pipes: QEMU opens what it inherits once per channel, and in a plain file these would write over each other.
    guest = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(shared), "PATH": f"{runner.parent}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"},
    )
    console = shared / "console.log"
    try:
        with console.open("wb", buffering=0) as log:
            timed_out = not _copy(guest, started + limit_s, log.write, show or log.write)
    finally:
        _end(guest)
    said = (shared / "code").read_text().strip() if (shared / "code").exists() else ""
    return Booted(int(said) if said.isdigit() else None, timed_out, time.monotonic() - started, console)


_PREAMBLE = """\
mount --bind {sources} /usr/src
export HOME=/tmp/home WHYSTALL_HOME=/tmp/whystall TERM=dumb
mkdir -p $HOME
"""


def _contained() -> list[str]:
    """A PID namespace that dies with us, where we may make one: QEMU is the grandchild of a shell of virtme-run."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return []
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--"]


def _copy(
    guest: subprocess.Popen[bytes],
    deadline: float,
    log: Callable[[bytes], object],
    show: Callable[[bytes], object],
) -> bool:
    """Copy what the guest says until it ends; False at the deadline."""
    with selectors.DefaultSelector() as pipes:
        for pipe, sink in ((guest.stdout, show), (guest.stderr, log)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            pipes.register(pipe, selectors.EVENT_READ, sink)
        while pipes.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in pipes.select(min(left, 1)):
                if data := os.read(key.fd, 1 << 16):
                    key.data(data)
                else:
                    pipes.unregister(key.fileobj)
            if guest.poll() is not None and not pipes.select(0):
                break
    return True


def _end(guest: subprocess.Popen[bytes]) -> None:
    if guest.poll() is None:
        os.killpg(guest.pid, signal.SIGKILL)
    guest.wait()
    for pipe in (guest.stdout, guest.stderr):
        if pipe is not None:
            pipe.close()


if __name__ == "__main__":
    import tempfile

    from kernels.stock import fetch

    name, limit, words = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    with tempfile.TemporaryDirectory(prefix="whystall-guest-") as folder:
        done = boot(fetch(name), " ".join(words), Path(folder), limit, lambda data: os.write(1, data))
        if not done.fine:
            print(done.tail(), file=sys.stderr)
        print(done, file=sys.stderr)
