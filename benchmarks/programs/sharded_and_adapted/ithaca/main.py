"""Momentum-contrast representation learning on procedurally drawn glyphs."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from contrast import KeyMemory, MomentumPair, contrastive_loss


class Glyphs(Dataset):
    """Each item is a random stroke pattern drawn from one of ten prototypes."""

    def __init__(self, n, seed, side=16):
        shared = torch.Generator().manual_seed(99)
        prototypes = F.interpolate(torch.randn(10, 1, 5, 5, generator=shared), size=side, mode="bilinear")
        g = torch.Generator().manual_seed(seed)
        self.label = torch.randint(0, 10, (n,), generator=g)
        self.image = prototypes[self.label] + 0.4 * torch.randn(n, 1, side, side, generator=g)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.image[i], self.label[i]


class Augment:
    """Random shift, flip and noise; the stream of random numbers belongs to this process."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def __call__(self, x):
        b = x.size(0)
        shift = torch.randint(-2, 3, (b, 2), generator=self.g).tolist()
        out = torch.stack([torch.roll(img, s, dims=(1, 2)) for img, s in zip(x, shift)])
        gain = 0.8 + 0.4 * torch.rand(b, 1, 1, 1, generator=self.g)
        return out * gain + 0.2 * torch.randn(out.shape, generator=self.g)


@torch.no_grad()
def neighbour_accuracy(encoder, bank, query):
    """1-nearest-neighbour probe; queries are split over processes and counted once."""
    encoder.eval()
    rank, world = dist.get_rank(), dist.get_world_size()
    reference = encoder(bank.image)
    mine = slice(rank, None, world)
    nearest = (encoder(query.image[mine]) @ reference.t()).argmax(1)
    stats = torch.stack([(bank.label[nearest] == query.label[mine]).sum(), torch.tensor(len(nearest))])
    dist.all_reduce(stats)
    encoder.train()
    return stats[0].item() / stats[1].item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--queue", type=int, default=512)
    ap.add_argument("--momentum", type=float, default=0.97)
    ap.add_argument("--temperature", type=float, default=0.2)
    ap.add_argument("--lr", type=float, default=0.05)
    ap.add_argument("--seed", type=int, default=6)
    ap.add_argument("--out", default="runs/ithaca")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    pair = MomentumPair(DDP, args.momentum)
    memory = KeyMemory(args.queue, 32, seed=args.seed)
    augment = Augment(seed=args.seed * 1000 + rank)
    train, bank, query = Glyphs(1024, seed=1), Glyphs(300, seed=2), Glyphs(201, seed=3)
    sampler = DistributedSampler(train, shuffle=True, seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch, sampler=sampler, drop_last=True)
    optimizer = torch.optim.SGD(pair.query.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3)
        for image, _ in loader:
            first, second = augment(image), augment(image)
            q = pair.query(first)
            with torch.no_grad():
                pair.follow()
                k = pair.key(second)
            loss, logits = contrastive_loss(q, k, memory, args.temperature)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            memory.push(k)
            sums += torch.tensor([loss.item() * len(q), (logits.argmax(1) == 0).sum().item(), len(q)])
        dist.all_reduce(sums)
        accuracy = neighbour_accuracy(pair.query.module, bank, query)
        if rank == 0:
            print(f"epoch {epoch} loss {sums[0] / sums[2]:.4f} match {sums[1] / sums[2]:.3f} "
                  f"neighbour accuracy {accuracy:.3f}", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"query": pair.query.module.state_dict(), "key": pair.key.state_dict(),
                    "memory": memory.state_dict()}, os.path.join(args.out, "moco.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
