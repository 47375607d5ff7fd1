import threading
import time

import torch
import torch.distributed as dist


class Pulse(threading.Thread):
    def __init__(self, group, beats):
        super().__init__(daemon=True)
        self.group, self.beats, self.done, self.slowest = group, beats, 0, 0

    def run(self):
        for _ in range(self.beats):
            t = torch.tensor([self.done])
            dist.all_reduce(t, op=dist.ReduceOp.MIN, group=self.group)
            self.slowest = int(t)
            time.sleep(0.03)
