import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from margin_head import ShardedArcHead

log = logging.getLogger("faces")


class Gallery(Dataset):
    """Synthetic identities: a fixed 1x16x16 pattern each, plus jitter."""

    def __init__(self, identities, shots, seed):
        base = torch.Generator().manual_seed(2024)
        self.patterns = torch.randn(identities, 1, 16, 16, generator=base)
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(identities).repeat_interleave(shots)
        self.noise = torch.randn(len(self.labels), 1, 16, 16, generator=g) * 1.8

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.patterns[self.labels[i]] + self.noise[i], self.labels[i]


class Backbone(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.proj = nn.Linear(16 * 16, dim)

    def forward(self, x):
        return self.proj(self.conv(x))


@torch.no_grad()
def rank1_accuracy(net, gallery, probe, rank, world):
    net.eval()
    bank = nn.functional.normalize(net(torch.stack([gallery[i][0] for i in range(len(gallery))])))
    mine = range(rank, len(probe), world)
    hits = torch.zeros(2, dtype=torch.float64)
    for i in mine:
        q = nn.functional.normalize(net(probe[i][0][None]))
        hits[0] += (gallery.labels[(q @ bank.t()).argmax()] == probe.labels[i]).double()
        hits[1] += 1
    dist.all_reduce(hits)
    net.train()
    return (hits[0] / hits[1]).item()


def parse():
    p = argparse.ArgumentParser(description="margin-softmax identity training")
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--identities", type=int, default=32)
    p.add_argument("--shots", type=int, default=24)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--dim", type=int, default=24)
    p.add_argument("--lr", type=float, default=0.004)
    p.add_argument("--workdir", default="work_faces")
    return p.parse_args()


def main():
    cfg = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(1)

    data = Gallery(cfg.identities, cfg.shots, seed=3)
    gallery, probe = Gallery(cfg.identities, 1, seed=4), Gallery(cfg.identities, 3, seed=5)
    sampler = DistributedSampler(data, shuffle=True, seed=9)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, drop_last=True)
    net = DDP(Backbone(cfg.dim))
    head = ShardedArcHead(cfg.dim, cfg.identities)
    opt = torch.optim.SGD(
        [{"params": net.parameters()}, {"params": head.parameters(), "lr": cfg.lr * 2}],
        lr=cfg.lr, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, cfg.epochs)

    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for images, labels in loader:
            loss = head(net(images), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        sched.step()
        acc = rank1_accuracy(net.module, gallery, probe, rank, world)
        log.info("epoch %d loss %.3f rank-1 %.3f", epoch, total / len(loader), acc)

    os.makedirs(cfg.workdir, exist_ok=True)
    torch.save({"weight": head.weight.detach(), "first": head.first},
               os.path.join(cfg.workdir, f"head_shard{rank}.pt"))
    if rank == 0:
        torch.save(net.module.state_dict(), os.path.join(cfg.workdir, "backbone.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
