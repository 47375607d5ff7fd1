"""Rounds of membership: after a fault everybody meets again in a fresh process group."""
import logging
import os
from datetime import timedelta

import torch.distributed as dist

log = logging.getLogger("membership")


class Membership:
    def __init__(self, max_rounds=4):
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.max_rounds = max_rounds
        self.round = 0
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(minutes=10)
        )

    def join(self):
        prefix = dist.PrefixStore(f"training/round{self.round}", self.store)
        dist.init_process_group("gloo", store=prefix, rank=self.rank, world_size=self.world)
        log.info("round %d: joined with %d members", self.round, dist.get_world_size())

    def leave(self):
        if dist.is_initialized():
            dist.destroy_process_group()

    def next_round(self, reason):
        log.warning("round %d ended: %s", self.round, str(reason).splitlines()[0][:120])
        self.leave()
        self.round += 1
        if self.round >= self.max_rounds:
            raise RuntimeError("too many membership rounds")
        self.join()
