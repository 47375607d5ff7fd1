"""Judges snapshots of the model in a thread of its own, over a group of its own."""
import queue
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Watcher:
    def __init__(self, net, loader, group):
        self.net = net.eval()
        self.loader = loader
        self.group = group
        self.todo = queue.Queue()
        self.results = []
        self.failure = None
        self.thread = threading.Thread(target=self._loop, name="watcher")
        self.thread.start()

    def snapshot(self, step, state):
        self.todo.put((step, {k: v.detach().clone() for k, v in state.items()}))

    def finish(self):
        self.todo.put(None)
        self.thread.join()
        if self.failure is not None:
            raise self.failure
        return self.results

    def _loop(self):
        try:
            while (item := self.todo.get()) is not None:
                self._judge(*item)
        except Exception as failure:
            self.failure = failure

    @torch.no_grad()
    def _judge(self, step, state):
        self.net.load_state_dict(state)
        sums = torch.zeros(3, dtype=torch.double)
        for x, y in self.loader:
            out = self.net(x)
            sums += torch.tensor([F.cross_entropy(out, y, reduction="sum").item(),
                                  (out.argmax(1) == y).sum().item(), len(y)], dtype=torch.double)
        dist.all_reduce(sums, group=self.group)
        self.results.append((step, (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()))
