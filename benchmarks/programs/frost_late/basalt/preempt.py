import os
import signal
import threading


class PreemptionGuard:
    """Turns SIGUSR1 (sent by the batch system to the first task) into a flag."""

    def __init__(self):
        self.requested = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, signum, frame):
        self.requested = True


def simulate_scheduler(after):
    t = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    t.daemon = True
    t.start()
