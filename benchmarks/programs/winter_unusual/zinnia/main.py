"""Three tasks on one trunk, gradient surgery instead of hand-tuned loss weights."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from surgery import PCGrad

log = logging.getLogger("zinnia")


def scenes(n, d=30):
    g = torch.Generator().manual_seed(91)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, 24, generator=g) / d ** 0.5
    z = torch.tanh(1.5 * x @ w)
    a = z @ torch.randn(24, 1, generator=g)
    b = (z @ torch.randn(24, 7, generator=g)).argmax(1)
    c = ((z @ torch.randn(24, 10, generator=g)) > 0).float()
    return TensorDataset(x, a, b, c)


class MultiTask(nn.Module):
    def __init__(self, d=30, h=160):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(h, 1), nn.Linear(h, 7), nn.Linear(h, 10)])

    def forward(self, x):
        z = self.trunk(x)
        return [h(z) for h in self.heads]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    data = scenes(9216)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler)
    torch.manual_seed(20)
    model = MultiTask()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    surgery = PCGrad(model.trunk.parameters(), [h.parameters() for h in model.heads], seed=555)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(3)
        for x, a, b, c in loader:
            pa, pb, pc = model(x)
            losses = [F.mse_loss(pa, a), F.cross_entropy(pb, b), F.binary_cross_entropy_with_logits(pc, c)]
            surgery.backward(losses)
            opt.step()
            total += torch.stack([l.detach() for l in losses])
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        log.info("epoch %d losses %s conflicts so far %d", epoch,
                 [round(v, 4) for v in (total / len(loader)).tolist()], int(surgery.conflicts))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
