"""Chromium without a window, driven over a pipe (the DevTools protocol), for tests of pages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def executable() -> str | None:
    """The browser's program, None when there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page. What the page complains of gathers in `complaints`, what it fetches in `requests`.
    `frames`: its frames run in one process, so that they can be asked too, and their complaints gather."""

    def __init__(self, *, width: int = 1200, height: int = 900, dark: bool = False, frames: bool = False) -> None:
        program = executable()
        assert program is not None
        self._home = tempfile.TemporaryDirectory(prefix="whystall-test-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The protocol's pipe is on descriptors 3 and 4.
        shell = f'exec 3<&{theirs_in} 4>&{theirs_out}; exec "$0" "$@"'
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={self._home.name}", f"--window-size={width},{height}"]
        if frames:
            options += ["--disable-site-isolation-trials", "--disable-features=IsolateOrigins,IsolateSandboxedIframes"]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, program, *options],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._home.name},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._contexts: dict[str, int] = {}  # by frame
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def until(self, done: Callable[[], Any], limit_s: float) -> Any:
        """Wait until `done` returns a true value, and return it; a page may be replaced meanwhile."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                if found := done():
                    return found
            except (KeyError, RuntimeError):
                pass  # the page, or a frame of it, was replaced
            assert time.monotonic() < deadline, self.run("document.body.innerText")
            time.sleep(0.02)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol; returns its result, raises RuntimeError with the browser's message."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, place: Path | str) -> None:
        """Load a file or an address and wait until its scripts have run."""
        self._loaded = False
        self.call("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        while not self._loaded:
            self._note(self._read())
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str, frame: str | None = None) -> Any:
        """The value of an expression in the page, or in one of its frames."""
        where = {"contextId": self._contexts[frame]} if frame else {}
        out = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, **where)
        if "exceptionDetails" in out:
            raise RuntimeError(json.dumps(out["exceptionDetails"]))
        return out["result"].get("value")

    def frames(self) -> list[Any]:
        """The frames of the page, each with its id and the list of the frames in it."""

        def inner(tree: dict[str, Any]) -> list[Any]:
            return [(one["frame"]["id"], inner(one)) for one in tree.get("childFrames", [])]

        return inner(self.call("Page.getFrameTree")["frameTree"])

    def press(self, key: str) -> None:
        """Press a key: one character, or a name such as Enter."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def write(self, text: str) -> None:
        """Type text into what has the focus."""
        self.call("Input.insertText", text=text)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def picture(self, path: Path) -> None:
        """Write what is seen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)
        deadline = time.monotonic() + 10
        while True:  # its helper processes end a little later, and write until then
            try:
                self._home.cleanup()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise EOFError(f"the browser ended with status {self._process.wait()}")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.executionContextCreated":
            created = params["context"]
            if created["auxData"].get("isDefault"):
                self._contexts[created["auxData"]["frameId"]] = created["id"]
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
