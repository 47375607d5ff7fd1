import copy
import os

import torch
import torch.distributed as dist


class Ema:
    """Averaged weights, held by the first rank alone; the others never need them."""

    def __init__(self, net, decay=0.98):
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, net):
        torch._foreach_lerp_(list(self.net.parameters()), list(net.parameters()), 1 - self.decay)


class StepGuard:
    """All ranks skip an update when the reduced gradient is not finite; the verdict follows from the reduced
    gradient itself and is thus the same everywhere."""

    def __init__(self, params, max_norm):
        self.params, self.max_norm = list(params), max_norm
        self.skipped = 0

    def ok(self):
        norm = torch.nn.utils.clip_grad_norm_(self.params, self.max_norm)
        if torch.isfinite(norm):
            return True
        self.skipped += 1
        return False


def save(path, run, rank):
    if rank == 0:
        tmp = path + ".tmp"
        torch.save({"model": run.net.state_dict(), "opt": run.opt.state_dict(), "sched": run.sched.state_dict(),
                    "ema": run.ema.net.state_dict(), "epoch": run.epoch, "skipped": run.guard.skipped}, tmp)
        os.replace(tmp, path)
    dist.barrier()


def restore(path, run, rank):
    state = torch.load(path, map_location="cpu", weights_only=True)
    run.net.load_state_dict(state["model"])
    run.opt.load_state_dict(state["opt"])
    run.sched.load_state_dict(state["sched"])
    run.epoch, run.guard.skipped = state["epoch"], state["skipped"]
    if rank == 0:
        run.ema.net.load_state_dict(state["ema"])
