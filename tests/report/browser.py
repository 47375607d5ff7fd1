"""A headless Chromium that is asked over its own pipe what it shows: no driver, no port."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NUMBERS = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9}


class Tab:
    """One open page. `complaints`: what it wrote to its console, and what it asked the network for."""

    def __init__(self, to: int, answers: Iterator[dict[str, Any]]) -> None:
        self._to, self._answers, self._ids = to, answers, itertools.count(1)
        self._session: str | None = None
        self.complaints: list[Any] = []

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one command of the DevTools protocol."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        for answer in self._answers:
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._hear(answer)
        raise AssertionError("the browser has gone")

    def show(self, page: Path) -> None:
        """Open a page and listen to it."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = str(self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Log", "Runtime", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=page.as_uri())
        while self.value("document.readyState") != "complete":
            continue

    def value(self, expression: str) -> Any:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=NUMBERS[key])

    def _hear(self, event: dict[str, Any]) -> None:
        method, about = event.get("method", ""), event.get("params", {})
        asked = method == "Network.requestWillBeSent" and not about["request"]["url"].startswith(("file:", "data:"))
        if asked or method in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(about)


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """The browser reads commands from its descriptor 3 and answers on 4."""
    (reads, to), (answers, writes) = os.pipe(), os.pipe()
    options = f"--headless=new --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={profile}"
    command = ["bash", "-c", f"exec chromium {options} 3<&{reads} 4>&{writes} 2>/dev/null"]
    process = subprocess.Popen(command, pass_fds=(reads, writes), stdout=subprocess.DEVNULL)
    os.close(reads)
    os.close(writes)
    try:
        with open(answers, "rb") as stream:
            tab = Tab(to, _messages(stream))
            yield tab
            tab._session = None
            tab.ask("Browser.close")
    finally:
        os.close(to)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _messages(stream: Any) -> Iterator[dict[str, Any]]:
    kept = b""
    while part := stream.read1(65536):
        *whole, kept = (kept + part).split(b"\0")
        yield from map(json.loads, whole)
