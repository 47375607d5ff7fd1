"""Exchange rates shared by the feature code of one process and kept up to date by a thread."""
import os
import threading
import time

_lock = threading.Lock()
_rates = {code: 1.0 + 0.1 * i for i, code in enumerate(["eur", "chf", "gbp", "sek", "pln", "czk"])}

# a child must not inherit the lock in the hands of a thread that it doesn't have
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def codes():
    return sorted(_rates)


def convert(amount, code):
    with _lock:
        return amount * _rates[code]


class Updater(threading.Thread):
    """Takes in corrections. They are tiny and only matter for the log of the day."""

    def __init__(self, pause=0.02):
        super().__init__(name="rates", daemon=True)
        self.pause = pause
        self.stopped = threading.Event()
        self.rounds = 0

    def run(self):
        while not self.stopped.wait(self.pause):
            with _lock:
                for code in _rates:
                    _rates[code] = round(_rates[code], 6)
                    time.sleep(0.005)
                self.rounds += 1

    def stop(self):
        self.stopped.set()
        self.join()
