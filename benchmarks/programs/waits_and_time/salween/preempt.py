import os
import signal


class NoticeBoard:
    """Remembers that the scheduler announced the end of this allocation."""

    SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self):
        self._pending = None

    def install(self):
        for s in self.SIGNALS:
            signal.signal(s, self._on_signal)

    def _on_signal(self, signum, frame):
        self._pending = signal.Signals(signum).name

    @property
    def leaving(self) -> bool:
        return self._pending is not None

    @property
    def reason(self):
        return self._pending

    @staticmethod
    def rehearse():
        os.kill(os.getpid(), signal.SIGUSR1)
