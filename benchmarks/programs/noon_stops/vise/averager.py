import queue
import threading

import torch
import torch.distributed as dist


class TeacherAverager:
    """Averages snapshots of the students over all processes in a thread and keeps an EMA of them."""

    def __init__(self, model, decay=0.8):
        self.group = dist.new_group()
        self.world = dist.get_world_size()
        self.decay = decay
        self.teacher = self._flat(model)
        self.inbox = queue.Queue(maxsize=2)
        self.merged = 0
        self.thread = threading.Thread(target=self._loop, name="averager")
        self.thread.start()

    @staticmethod
    @torch.no_grad()
    def _flat(model):
        return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])

    def submit(self, model):
        self.inbox.put(self._flat(model))

    def _loop(self):
        while True:
            snap = self.inbox.get()
            if snap is None:
                return
            dist.all_reduce(snap, group=self.group)
            self.teacher.mul_(self.decay).add_(snap, alpha=(1 - self.decay) / self.world)
            self.merged += 1

    def finish(self):
        self.inbox.put(None)
        self.thread.join()
        return self.teacher
