import argparse
import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Paths:
    out: str = "out_shasta"
    checkpoint: str = "last.pt"


class World:
    """Latent scenes from which both the picture and the caption are made."""

    def __init__(self, scenes, latent, seed):
        g = torch.Generator().manual_seed(seed)
        self.z = torch.randn(scenes, latent, generator=g)
        self.to_pixels = torch.randn(latent, 48, generator=g) / latent ** 0.5
        self.to_words = torch.randn(latent, 60, generator=g) / latent ** 0.5
        self.noise = 0.1 * torch.randn(scenes, 48, generator=g)


class Pictures(Dataset):
    def __init__(self, world, ids):
        self.world, self.ids = world, ids

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        k = self.ids[i]
        return self.world.z[k] @ self.world.to_pixels + self.world.noise[k]


class Captions(Dataset):
    def __init__(self, world, ids, length=8):
        self.world, self.ids, self.length = world, ids, length

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        logits = self.world.z[self.ids[i]] @ self.world.to_words
        return logits.topk(self.length).indices


class PairedLoader:
    """Walks two loaders side by side and counts the passes."""

    def __init__(self, left: DataLoader, right: DataLoader):
        self.left, self.right = left, right
        self.sampler = left.sampler

    def __len__(self):
        return min(len(self.left), len(self.right))

    def set_epoch(self, epoch: int):
        if isinstance(self.sampler, DistributedSampler):
            self.sampler.set_epoch(epoch)

    def __iter__(self):
        return zip(self.left, self.right)


class TwoTower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.vision = nn.Sequential(nn.Linear(48, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, dim))
        self.words = nn.EmbeddingBag(60, 96, mode="mean")
        self.text = nn.Sequential(nn.LayerNorm(96), nn.GELU(), nn.Linear(96, dim))
        self.scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, pix, words):
        a = F.normalize(self.vision(pix), dim=-1)
        b = F.normalize(self.text(self.words(words)), dim=-1)
        return a, b, self.scale.clamp(max=4.0).exp()


def clip_loss(a, b, scale):
    logits = scale * a @ b.t()
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


@torch.no_grad()
def retrieval(model, world, ids, rank, ranks):
    model.eval()
    pix = torch.stack([Pictures(world, ids)[i] for i in range(len(ids))])
    cap = torch.stack([Captions(world, ids)[i] for i in range(len(ids))])
    a, b, _ = model.module(pix, cap)
    mine = torch.arange(rank, len(ids), ranks)
    stat = torch.tensor([(a[mine] @ b.t()).argmax(1).eq(mine).sum().item(), len(mine)], dtype=torch.float32)
    dist.all_reduce(stat)
    model.train()
    return (stat[0] / stat[1]).item()


def build_loader(args, world, ids, rank, ranks):
    def one(ds):
        sampler = DistributedSampler(ds, ranks, rank, shuffle=True, seed=args.seed, drop_last=True)
        return DataLoader(ds, args.batch, sampler=sampler, drop_last=True)
    return PairedLoader(one(Pictures(world, ids)), one(Captions(world, ids)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--scenes", type=int, default=960)
    p.add_argument("--held", type=int, default=60)
    p.add_argument("--batch", type=int, default=30)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=19)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    world = World(args.scenes + args.held, 12, args.seed)
    loader = build_loader(args, world, list(range(args.scenes)), rank, ranks)
    held = list(range(args.scenes, args.scenes + args.held))
    model = DDP(TwoTower())
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.epochs * len(loader))
    paths = Paths()
    for epoch in range(args.epochs):
        t0 = time.time()
        loader.set_epoch(epoch)
        sums = torch.zeros(2)
        for pix, cap in loader:
            loss = clip_loss(*model(pix, cap))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            sums += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(sums)
        r1 = retrieval(model, world, held, rank, ranks)
        if rank == 0:
            print(f"epoch {epoch} loss {sums[0] / sums[1]:.4f} r@1 {r1:.3f} {time.time() - t0:.1f}s", flush=True)
            os.makedirs(paths.out, exist_ok=True)
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, os.path.join(paths.out, paths.checkpoint))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
