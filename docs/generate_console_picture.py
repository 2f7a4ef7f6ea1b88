"""Write console.png: a program that writes checkpoints is diagnosed in the console. Needs Chromium, and root for eBPF.

Run it as ``PYTHONPATH=tests:tests/tools/views python docs/generate_console_picture.py [OUT]``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser
from console_server import serving, token_of, write_settings

HERE = Path(__file__).parent
TRAINS = """
import os, time

def save(step):
    with open("checkpoint.pt", "wb") as file:
        file.write(os.urandom(64 << 20))
        file.flush()
        os.fsync(file.fileno())

def train():
    step = 0
    while True:
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            sum(range(10_000))
        step += 1
        save(step)

train()
"""


def main() -> None:
    """Diagnose the program by the form of the console, and take the picture of the result."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "console.png"
    with tempfile.TemporaryDirectory() as home:
        program = Path(home) / "train.py"
        program.write_text(TRAINS)
        os.environ |= {"WHYSTALL_HOME": home, "WHYSTALL_CONFIG": str(write_settings(Path(home)))}
        with subprocess.Popen([sys.executable, str(program)], cwd=home) as target:
            try:
                with serving() as console, Browser(width=1100, height=800) as browser:
                    time.sleep(2)  # it trains
                    _log_in(browser, console.url)
                    browser.open(f"{console.url}/diagnoses?pid={target.pid}")
                    browser.run("document.getElementById('symptom').value = 'training stalls every few seconds'")
                    browser.run("document.querySelector('#start form').requestSubmit()")
                    _until(browser, "location.pathname.startsWith('/console/diagnoses/')")
                    _until(browser, "document.querySelector('figure img').complete")
                    browser.settle()
                    browser.picture(out)
            finally:
                target.kill()


def _log_in(browser: Browser, url: str) -> None:
    browser.open(f"{url}/login")
    browser.run(f"document.getElementById('token').value = {token_of('root')!r}")
    browser.run("document.querySelector('main form').requestSubmit()")
    _until(browser, "!!document.querySelector('nav')")


def _until(browser: Browser, condition: str) -> None:
    """Wait until `condition` holds in a loaded page, at most 3 minutes."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            if browser.run(f"document.readyState === 'complete' && {condition}"):
                return
        except (RuntimeError, KeyError):
            pass  # the page is being replaced
        time.sleep(0.2)
    raise TimeoutError(browser.run("document.body.innerText"))


if __name__ == "__main__":
    main()
