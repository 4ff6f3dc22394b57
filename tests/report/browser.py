"""A headless Chromium driven over the pipe of its DevTools protocol: no driver program, no port, no
library.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--remote-debugging-pipe",
]
_LAUNCH = """if True:  # the protocol's pipes are the descriptors 3 and 4
    import fcntl, os, sys
    ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
    for place, end in enumerate(ends):
        os.dup2(end, 3 + place)
    os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE_S = 60
_KEYS = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Enter": 13,
    "Home": 36,
    "End": 35,
}


def find_browser() -> str | None:
    """The path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser. Close it when done."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        ends = to_browser, from_browser
        launch = [sys.executable, "-c", _LAUNCH, *map(str, ends), program, *_FLAGS]
        self._process = subprocess.Popen(
            [*launch, f"--user-data-dir={profile}"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, ""
        # messages on the console, exceptions, and requests that left the page
        self.troubles: list[str] = []
        page = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 16) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, details: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.troubles.append(json.dumps(details["exceptionDetails"])[:500])
        elif method == "Log.entryAdded":
            self.troubles.append(details["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Page.javascriptDialogOpening"):
            self.troubles.append(f"{method}: {json.dumps(details)[:500]}")
        elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith(
            ("file:", "data:")
        ):
            self.troubles.append(f"request of {details['request']['url']}")

    def open(self, page: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Load a file anew at this size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        colours = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=colours)
        self.send("Page.navigate", url=page.resolve().as_uri())
        deadline = time.monotonic() + _PATIENCE_S
        while (
            self.run("document.readyState") != "complete"
            or self.run("location.protocol") != "file:"
        ):
            assert time.monotonic() < deadline, "the page does not load"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        """Type keys into what has the focus."""
        for key in keys:
            code = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
            text = {"text": "\r"} if key == "Enter" else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def point(self, selector: str, click: bool = True) -> None:
        """Move the mouse onto the first element that matches, and click it."""
        place = self.run(
            f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
            " node.scrollIntoView({block: 'center'}); const box = node.getClientRects()[0];"
            " return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def close(self) -> None:
        """End the browser."""
        os.close(self._out)  # the end of its pipe ends it
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
