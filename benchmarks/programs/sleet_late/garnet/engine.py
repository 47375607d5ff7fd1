import copy
import math
import os

import torch
import torch.distributed as dist


class WeightAverage:
    """Exponential moving average of weights, used for evaluation and export."""

    def __init__(self, net, decay=0.98):
        self.decay = decay
        self.module = copy.deepcopy(net).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, net):
        for a, b in zip(self.module.state_dict().values(), net.state_dict().values()):
            if a.dtype.is_floating_point:
                a.lerp_(b, 1.0 - self.decay)
            else:
                a.copy_(b)

    def state_dict(self):
        return self.module.state_dict()

    def load_state_dict(self, sd):
        self.module.load_state_dict(sd)


def warmup_cosine(opt, warm, total):
    def factor(step):
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / (total - warm))))
    return torch.optim.lr_scheduler.LambdaLR(opt, factor)


def save_state(path, net, opt, sched, avg, epoch):
    if dist.get_rank() != 0:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict(),
                "avg": avg.state_dict(), "epoch": epoch}, path + ".tmp")
    os.replace(path + ".tmp", path)


def restore(path, net, opt, sched, avg):
    blob = torch.load(path, map_location="cpu")
    net.load_state_dict(blob["net"])
    opt.load_state_dict(blob["opt"])
    sched.load_state_dict(blob["sched"])
    return blob["epoch"] + 1
