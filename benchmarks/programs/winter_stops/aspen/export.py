import logging
import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

log = logging.getLogger("export")


def consolidate(model):
    """Full fp32 state dict on the CPU, independent of how the model is laid out."""
    weights = {}
    for name, value in model.state_dict().items():
        if isinstance(value, DTensor):
            value = value.full_tensor()
        weights[name] = value.detach().float().cpu().clone()
    return weights


class Callback:
    def on_step_end(self, state):
        pass

    def on_eval_end(self, state):
        pass


class ShardedSnapshot(Callback):
    """Every rank writes its own piece, for quick restarts."""

    def __init__(self, folder, every):
        self.folder, self.every = folder, every

    def on_step_end(self, state):
        if state.step % self.every:
            return
        local = {k: v.to_local() if isinstance(v, DTensor) else v for k, v in state.model.state_dict().items()}
        torch.save({"step": state.step, "model": local}, os.path.join(self.folder, f"shard_{dist.get_rank()}.pt"))


class BestWeights(Callback):
    """Keeps a consolidated copy of the best model so far for the inference team."""

    def __init__(self, folder, start_step):
        self.folder, self.start_step = folder, start_step
        self.best = float("inf")

    def on_eval_end(self, state):
        if state.val_loss >= self.best:
            return
        self.best = state.val_loss
        if state.step < self.start_step:
            return
        weights = consolidate(state.model)
        if dist.get_rank() == 0:
            torch.save(weights, os.path.join(self.folder, "best.pt"))
            log.info("step %d: exported %d tensors, val %.4f", state.step, len(weights), state.val_loss)


class ConsoleLog(Callback):
    def __init__(self, every):
        self.every = every

    def on_step_end(self, state):
        if state.step % self.every == 0:
            log.info("step %4d  loss %.4f", state.step, state.loss)

    def on_eval_end(self, state):
        log.info("step %4d  val  %.4f", state.step, state.val_loss)
