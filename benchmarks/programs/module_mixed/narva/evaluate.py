import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class Strided(Sampler):
    """Every sample exactly once over all ranks; lengths may differ by one."""

    def __init__(self, n, rank, world):
        self.ids = range(rank, n, world)

    def __iter__(self):
        return iter(self.ids)

    def __len__(self):
        return len(self.ids)


@torch.no_grad()
def gather_uneven(rows):
    """Rows of all ranks in rank order; shorter ranks are padded for the exchange only."""
    n = torch.tensor(len(rows))
    sizes = [torch.empty_like(n) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, n)
    top = int(max(sizes))
    padded = torch.cat([rows, rows.new_zeros(top - len(rows), rows.size(1))])
    every = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(every, padded)
    return torch.cat([e[:int(s)] for e, s in zip(every, sizes)])


@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    rows = torch.cat([torch.stack([net(x).squeeze(1), y], 1) for x, y in loader])
    net.train()
    every = gather_uneven(rows)
    order = every[:, 0].argsort(descending=True)
    hit = every[order, 1]
    pos, neg = hit.sum(), (1 - hit).sum()
    auc = ((hit == 0) * hit.cumsum(0)).sum() / (pos * neg)
    return auc.item(), len(every)
