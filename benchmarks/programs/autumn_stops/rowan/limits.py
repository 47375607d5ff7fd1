"""Mirrors the memory limit of the production pods on hosts without cgroups."""
import os
import signal
import threading
import time


def resident_mb():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class PodMemoryLimit(threading.Thread):
    def __init__(self, limit_mb, poll=0.2):
        super().__init__(name="pod-limit", daemon=True)
        self.limit_mb = limit_mb
        self.poll = poll

    def run(self):
        while resident_mb() < self.limit_mb:
            time.sleep(self.poll)
        os.kill(os.getpid(), signal.SIGKILL)
