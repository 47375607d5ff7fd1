import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from losses import PairLoss


class Towers(nn.Module):
    def __init__(self, dim_a, dim_b, width, out):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(dim_a, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))
        self.emb = nn.EmbeddingBag(dim_b, width)
        self.b = nn.Sequential(nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))
        self.scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, img, txt):
        return self.a(img), self.b(self.emb(txt)), self.scale


class Pairs:
    """Image-like vectors and caption-like id lists that share a latent."""

    def __init__(self, n, seed=0):
        g = torch.Generator().manual_seed(seed)
        z = torch.randn(n, 12, generator=g)
        self.img = torch.tanh(z @ torch.randn(12, 96, generator=g)) + 0.4 * torch.randn(n, 96, generator=g)
        vocab = torch.randn(512, 12, generator=g)
        self.txt = (z @ vocab.T + 0.5 * torch.randn(n, 512, generator=g)).topk(8, 1).indices
        self.n = n

    def epoch(self, epoch, global_batch, rank, world):
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(40 + epoch))
        for s in range(0, self.n - global_batch + 1, global_batch):
            idx = order[s:s + global_batch].chunk(world)[rank]
            yield self.img[idx], self.txt[idx]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=8)
    ap.add_argument("--global-batch", type=int, default=256)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    torch.manual_seed(5)
    model = DDP(Towers(96, 512, 256, 64))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    crit = PairLoss()
    data, step = Pairs(8192), 0
    for epoch in range(args.epochs):
        for img, txt in data.epoch(epoch, args.global_batch, rank, world):
            loss = crit(*model(img, txt))
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
        # a rank's own number depends on the rows it holds; the mean is what is optimised
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        logging.info("epoch %d step %d local %.4f mean %.6f scale %.6f", epoch, step, loss.item(), mean.item() / world, model.module.scale.exp().item())
    with torch.no_grad():
        probe = Pairs(8192)
        a, b, _ = model.module(probe.img[:1000], probe.txt[:1000])
        sim = nn.functional.normalize(a, dim=1) @ nn.functional.normalize(b, dim=1).T
        logging.info("recall@1 %.3f", (sim.argmax(1) == torch.arange(1000)).float().mean())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
