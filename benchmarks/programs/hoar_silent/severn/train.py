import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from checkpoint import Checkpointer


class ResidualMLP(nn.Module):
    def __init__(self, dim=32, width=128, depth=3, out=1):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)])
        self.out = nn.Linear(width, out)

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h).squeeze(-1)


def make_data(n=2000, dim=32):
    g = torch.Generator().manual_seed(5)
    x = torch.randn(n, dim, generator=g)
    y = (x[:, 0] * x[:, 1]).tanh() + 0.5 * x[:, 2:6].abs().sum(1) + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch-size", type=int, default=40)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--out", default="runs")
    ap.add_argument("--fresh", action="store_true", help="ignore an existing checkpoint")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(message)s")

    torch.manual_seed(3)
    ckpt = Checkpointer(args.out)
    meta = {"epoch": -1, "step": 0} if args.fresh else ckpt.open()
    net = ResidualMLP()
    ckpt.load_model(net)
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    ckpt.load_optimizer(opt)
    step = meta["step"]
    logging.info("starting at epoch %d, step %d", meta["epoch"] + 1, step)

    data = make_data()
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(meta["epoch"] + 1, args.epochs):
        sampler.set_epoch(epoch)
        acc = 0.0
        for x, y in loader:
            loss = nn.functional.smooth_l1_loss(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            acc += loss.item()
        mean = torch.tensor(acc / len(loader))
        dist.all_reduce(mean)
        logging.info("epoch %d step %d loss %.5f", epoch, step, mean.item() / dist.get_world_size())
        ckpt.save(net, opt, epoch, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
