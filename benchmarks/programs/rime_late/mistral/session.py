"""A run session: process groups, log file and the closing report."""
import json
import logging
import os
import time

import torch.distributed as dist


class Session:
    def __init__(self, out):
        self.out = out
        self.samples = 0
        self.loss_sum = 0.0

    def __enter__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        # object traffic gets its own group so that it never mixes with gradients
        self.control = dist.new_group(backend="gloo")
        os.makedirs(self.out, exist_ok=True)
        logging.basicConfig(level=logging.INFO if self.rank == 0 else logging.WARNING,
                            format=f"%(asctime)s r{self.rank} %(message)s")
        self.log = logging.getLogger("vibro")
        self.started = time.time()
        return self

    def note(self, count, loss):
        self.samples += count
        self.loss_sum += count * loss

    def report(self):
        mine = {"rank": self.rank, "samples": self.samples, "loss": self.loss_sum / max(1, self.samples)}
        rows = [None] * self.world
        dist.all_gather_object(rows, mine, group=self.control)
        if self.rank == 0:
            with open(os.path.join(self.out, "report.json"), "w") as handle:
                json.dump({"seconds": time.time() - self.started, "ranks": rows}, handle, indent=1)
            self.log.info("report written for %d ranks", len(rows))

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.report()
            dist.destroy_process_group()
        return False
