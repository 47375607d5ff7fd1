import os
import signal
import subprocess
import sys

import torch.distributed as dist


class Notice:
    """Remembers the warning signal that the batch system sends before it takes the node back."""

    def __init__(self, signum=signal.SIGUSR1):
        self.raised = False
        signal.signal(signum, self._on_signal)

    def _on_signal(self, signum, frame):
        self.raised = True


def announce(delay):
    """Stands in for the batch system: warns every process of the job after ``delay`` seconds."""
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 0:
        code = ("import os,signal,sys,time;time.sleep(float(sys.argv[1]));"
                "[os.kill(int(p),signal.SIGUSR1) for p in sys.argv[2:]]")
        subprocess.Popen([sys.executable, "-S", "-c", code, str(delay), *map(str, pids)])
