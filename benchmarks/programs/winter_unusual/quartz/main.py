"""Two-tower contrastive pre-training with negatives from every rank."""
import argparse
import logging
import math

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("quartz")


class Pairs(Dataset):
    """Two noisy non-linear views of the same latent."""

    def __init__(self, n, d_latent=12, seed=0):
        g = torch.Generator().manual_seed(41)
        m1, m2 = torch.randn(d_latent, 48, generator=g), torch.randn(d_latent, 64, generator=g)
        h = torch.Generator().manual_seed(seed)
        z = torch.randn(n, d_latent, generator=h)
        self.a = torch.tanh(z @ m1 / 2) + 0.1 * torch.randn(n, 48, generator=h)
        self.b = torch.sin(z @ m2 / 2) + 0.1 * torch.randn(n, 64, generator=h)

    def __len__(self):
        return len(self.a)

    def __getitem__(self, i):
        return self.a[i], self.b[i]


class Tower(nn.Sequential):
    def __init__(self, d, width=160, out=48):
        super().__init__(nn.Linear(d, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(),
                         nn.Linear(width, out))


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Tower(48), Tower(64)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1), self.log_scale.exp()


class GlobalContrast(nn.Module):
    """Rows of this rank against the columns of all ranks, in both directions."""

    def __init__(self):
        super().__init__()
        self.rank = dist.get_rank()

    def forward(self, za, zb, scale):
        n, d = za.shape
        both = torch.cat([za, zb], 1)
        ga, gb = torch.cat(all_gather(both)).split(d, dim=1)
        label = torch.arange(n) + self.rank * n
        return 0.5 * (F.cross_entropy(scale * za @ gb.T, label) + F.cross_entropy(scale * zb @ ga.T, label))


@torch.no_grad()
def recall_at_1(net, held):
    """The gallery is small: every rank scores its own share of the queries against the full gallery."""
    r, w = dist.get_rank(), dist.get_world_size()
    net.eval()
    za, zb, _ = net(held.a, held.b)
    q = torch.arange(r, len(held), w)
    hit = (za[q] @ zb.T).argmax(1).eq(q).sum()
    dist.all_reduce(hit)
    net.train()
    return hit.item() / len(held)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    train, held = Pairs(5760, seed=1), Pairs(512, seed=2)
    sampler = DistributedSampler(train, seed=4, drop_last=True)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler, drop_last=True)
    torch.manual_seed(2)
    net = TwoTower()
    model = DDP(net)
    criterion = GlobalContrast()
    decay = [p for p in net.parameters() if p.ndim >= 2]
    rest = [p for p in net.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for a, b in loader:
            loss = criterion(*model(a, b))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            with torch.no_grad():
                net.log_scale.clamp_(max=math.log(100))
            total += loss.detach()
        log.info("epoch %d loss %.4f recall@1 %.3f", epoch, total.item() / len(loader), recall_at_1(net, held))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
