"""Keeps a moving average of the weights on some ranks, compared with one another now and then."""
import logging

import torch
import torch.distributed as dist

log = logging.getLogger("replica")


class Replica:
    def __init__(self, model, decay):
        self.decay = decay
        self.flat = self.flatten(model)

    @staticmethod
    def flatten(model):
        return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()

    def update(self, model):
        self.flat.lerp_(self.flatten(model), 1 - self.decay)


class ReplicaKeeper:
    """Steps with a loss spike do not enter the average."""

    def __init__(self, topo, model, decay=0.9, every=20, tolerance=0.05, spike=1.02):
        self.topo, self.every, self.spike = topo, every, spike
        self.tolerance = tolerance
        self.smooth = None
        self.updates = 0
        self.replica = Replica(model, decay) if topo.keeps else None
        self.checks = 0

    def spiky(self, loss):
        before = self.smooth
        self.smooth = loss if before is None else 0.9 * before + 0.1 * loss
        return before is not None and loss > self.spike * before

    def after_step(self, step, model, loss):
        if self.replica is None or self.spiky(loss):
            return
        self.replica.update(model)
        self.updates += 1
        if self.updates % self.every == 0:
            self.compare(step)

    def compare(self, step):
        other = self.replica.flat.clone()
        dist.all_reduce(other, op=dist.ReduceOp.MAX, group=self.topo.keeper_group)
        gap = (other - self.replica.flat).abs().max().item()
        self.checks += 1
        if gap > self.tolerance:
            raise RuntimeError(f"replicas differ by {gap:.2e} at step {step}")
        log.info("step %d: largest gap between replicas %.1e", step, gap)
