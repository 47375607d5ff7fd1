"""An optimizer step that processes take together, also those which have read all their data."""
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook


class Shadow(JoinHook):
    def __init__(self, owner):
        self.owner = owner

    def main_hook(self):
        self.owner.move(None)


class SharedStep(Joinable):
    """Mean gradient over the rows that were read this turn, then the same move everywhere."""

    def __init__(self, net, opt):
        super().__init__()
        self.params = list(net.parameters())
        self.sizes = [p.numel() for p in self.params]
        self.opt = opt

    def __call__(self, rows):
        work = Join.notify_join_context(self)
        if work is not None:
            work.wait()
        self.move(rows)

    @torch.no_grad()
    def move(self, rows):
        if rows is None:
            packed = torch.zeros(sum(self.sizes) + 1)
        else:
            packed = torch.cat([p.grad.flatten() for p in self.params] + [torch.tensor([float(rows)])])
        dist.all_reduce(packed)
        for p, g in zip(self.params, (packed[:-1] / packed[-1]).split(self.sizes)):
            p.grad = g.view_as(p).clone()
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)

    def join_hook(self, **kwargs):
        return Shadow(self)

    @property
    def join_device(self):
        return torch.device("cpu")

    @property
    def join_process_group(self):
        return dist.group.WORLD
