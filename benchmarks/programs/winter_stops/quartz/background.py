"""Work beside the training thread. Every thread talks over a process group of its own."""
import copy
import queue
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F


class BackgroundValidator(threading.Thread):
    """Scores snapshots of the model on this rank's part of the validation set."""

    def __init__(self, x, y, group):
        super().__init__(name="validator", daemon=True)
        self.x, self.y, self.group = x, y, group
        self.inbox = queue.Queue()
        self.results = queue.Queue()
        self.error = None

    def submit(self, step, net):
        self.inbox.put((step, copy.deepcopy(net).eval()))

    @torch.no_grad()
    def run(self):
        try:
            while (job := self.inbox.get()) is not None:
                step, net = job
                sums = torch.zeros(3)
                for x, y in zip(self.x.split(128), self.y.split(128)):
                    out = net(x)
                    sums += torch.tensor([F.cross_entropy(out, y, reduction="sum").item(), (out.argmax(1) == y).sum().item(), len(y)])
                dist.all_reduce(sums, group=self.group)
                self.results.put((step, (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()))
        except Exception as e:
            self.error = e

    def poll(self):
        if self.error is not None:
            raise RuntimeError("validator failed") from self.error
        while not self.results.empty():
            yield self.results.get()

    def close(self):
        self.inbox.put(None)
        self.join()


class Pulse(threading.Thread):
    """Exchanges progress twice a second until both sides have said that they are through."""

    def __init__(self, group, every=0.5):
        super().__init__(name="pulse", daemon=True)
        self.group, self.every = group, every
        self.step = 0
        self.finished = threading.Event()
        self.widest = 0

    def run(self):
        while True:
            through = self.finished.wait(self.every)
            mine = torch.tensor([self.step, int(through)])
            both = [torch.zeros_like(mine) for _ in range(dist.get_world_size(self.group))]
            dist.all_gather(both, mine, group=self.group)
            steps = [int(t[0]) for t in both]
            self.widest = max(self.widest, max(steps) - min(steps))
            if all(int(t[1]) for t in both):
                return

    def close(self):
        self.finished.set()
        self.join()
