"""A real Chromium for tests: a small client of the DevTools protocol over a pipe; no driver to install."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from waiting import SOON

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Browser:
    """One page: ``with Browser() as page: page.open(url); page.wait("document.title")``."""

    def __init__(self, width: int = 1440, height: int = 1000) -> None:
        assert CHROMIUM is not None, "there is no Chromium; run `make browser`"
        self._home = tempfile.TemporaryDirectory(prefix="headgate-browser-", ignore_cleanup_errors=True)
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        options = (
            "--headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --disable-dev-shm-usage "
            "--no-first-run --disable-extensions --hide-scrollbars --disable-background-networking"
        )
        script = f'exec "$0" {options} --user-data-dir="$1" about:blank 3<&{to_child} 4>&{from_child}'
        self._child = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, self._home.name],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_child)
        os.close(from_child)
        self._numbers = itertools.count(1)
        self._rest = b""
        self.errors: list[str] = []
        """What the page's own code has raised, or the browser refused."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.size(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()
        os.close(self._write)
        os.close(self._read)
        self._home.cleanup()

    def size(self, width: int, height: int, mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, patience: float = SOON) -> Any:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + patience
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"the page never had {script}; its errors: {self.errors}"
            time.sleep(0.05)
        return found

    def enter_frame(self, address: str) -> None:
        """From now on, speak to a frame of another site; wait until it has come."""
        end = time.monotonic() + SOON
        while True:
            targets = self._call("Target.getTargets")["targetInfos"]
            found = [one["targetId"] for one in targets if one["type"] == "iframe" and one["url"] == address]
            if found:
                break
            assert time.monotonic() < end, f"there is no frame with {address}; its errors: {self.errors}"
            time.sleep(0.05)
        self._session = self._call("Target.attachToTarget", targetId=found[0], flatten=True)["sessionId"]
        for domain in ("Runtime", "Log"):
            self.call(f"{domain}.enable")

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def enter(self, selector: str, value: str) -> None:
        """Give a field a value as a person does: with its events, as soon as it is there."""
        self.wait(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); if (!field) return; "
            f"field.value = {json.dumps(value)}; for (const kind of ['input', 'change']) "
            "field.dispatchEvent(new Event(kind, {bubbles: true})); return true; })()"
        )

    def click(self, selector: str) -> None:
        """As soon as it is there: the page makes rows anew when the network has changed."""
        found = f"const found = document.querySelector({json.dumps(selector)})"
        self.wait(f"(() => {{ {found}; found?.click(); return Boolean(found); }})()")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path, whole: bool = False) -> None:
        """A screenshot: of the window, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One call of the DevTools protocol."""
        return self._call(method, session=self._session, **params)

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                found: dict[str, Any] = answer["result"]
                return found
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            elif answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                entry = answer["params"]["entry"]
                self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    def _next(self, method: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], SOON)
            assert ready, f"Chromium does not answer {method}"
            piece = os.read(self._read, 1 << 20)
            assert piece, "Chromium has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found
