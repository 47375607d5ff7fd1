"""Stops the job when enough ranks have stopped making progress on their own domain."""
import logging

import torch
import torch.distributed as dist

log = logging.getLogger("stop")


class DomainPatience:
    def __init__(self, patience, min_delta):
        self.patience, self.min_delta = patience, min_delta
        self.best = float("inf")
        self.bad = 0

    def update(self, loss):
        if loss < self.best - self.min_delta:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


class Vote:
    """All ranks leave together once the share of tired ranks reaches the quorum."""

    def __init__(self, patience=2, min_delta=0.01, quorum=0.5):
        self.mine = DomainPatience(patience, min_delta)
        self.quorum = quorum

    def __call__(self, epoch, loss):
        tired = torch.tensor([float(self.mine.update(loss))])
        dist.all_reduce(tired)
        share = tired.item() / dist.get_world_size()
        if dist.get_rank() == 0:
            log.info("epoch %d: %.0f%% of the ranks would stop", epoch, 100 * share)
        return share >= self.quorum
