import os
import signal
import subprocess


class PreemptionGuard:
    """Turns the scheduler's USR1 notice into a flag that the loop looks at."""

    def __init__(self):
        self.requested = False
        signal.signal(signal.SIGUSR1, self._on_notice)

    def _on_notice(self, signum, frame):
        self.requested = True


class NoticeEmulator:
    """Stands in for `sbatch --signal=USR1@N`: the node's head task gets the notice."""

    def __init__(self, seconds):
        self.proc = None
        if seconds > 0 and int(os.environ["LOCAL_RANK"]) == 0:
            self.proc = subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -USR1 {os.getpid()} 2>/dev/null"])

    def close(self):
        if self.proc is not None:
            self.proc.terminate()
            self.proc.wait()
