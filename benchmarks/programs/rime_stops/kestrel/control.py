import json
import os
import threading
import time


class RemoteControl:
    """Watches a small JSON mailbox that the dashboard writes to."""

    def __init__(self, path, poll=0.2):
        self.path = path
        self.poll = poll
        self.stop_requested = False
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self):
        self._thread.start()
        return self

    def _loop(self):
        while not self._quit.is_set():
            try:
                with open(self.path) as f:
                    if json.load(f).get("command") == "stop":
                        self.stop_requested = True
            except (FileNotFoundError, json.JSONDecodeError):
                pass
            time.sleep(self.poll)

    def close(self):
        self._quit.set()
        self._thread.join()


class Dashboard:
    """Stand-in for the web UI: presses the stop button once the curve is flat enough."""

    def __init__(self, path, target):
        self.path = path
        self.target = target
        self.sent = False

    def report(self, step, loss):
        if loss < self.target and not self.sent:
            tmp = self.path + ".part"
            with open(tmp, "w") as f:
                json.dump({"command": "stop", "step": step}, f)
            os.replace(tmp, self.path)
            self.sent = True
