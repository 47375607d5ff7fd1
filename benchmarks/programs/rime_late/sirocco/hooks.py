import json
import os
import time

import torch
import torch.distributed as dist


class Hook:
    def setup(self, trainer):
        pass

    def after_step(self, trainer, loss):
        pass

    def after_epoch(self, trainer):
        pass

    def teardown(self, trainer):
        pass


class Throughput(Hook):
    def setup(self, trainer):
        self.t0 = time.perf_counter()
        self.tokens = 0

    def after_step(self, trainer, loss):
        self.tokens += trainer.last_tokens

    def after_epoch(self, trainer):
        trainer.say(f"{self.tokens / (time.perf_counter() - self.t0):.0f} tokens/s on rank 0")


class LossHistory(Hook):
    """Keeps the local losses; at the end one file holds the mean curve over all ranks."""

    def __init__(self, path):
        self.path = path

    def setup(self, trainer):
        self.values = []

    def after_step(self, trainer, loss):
        self.values.append(loss)

    def teardown(self, trainer):
        curve = torch.tensor(self.values)
        length = torch.tensor([len(curve)])
        dist.all_reduce(length, op=dist.ReduceOp.MIN, group=trainer.side_group)
        curve = curve[: int(length)].clone()
        dist.all_reduce(curve, group=trainer.side_group)
        if trainer.rank == 0:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(self.path, "w") as fh:
                json.dump((curve / trainer.world).tolist(), fh)
