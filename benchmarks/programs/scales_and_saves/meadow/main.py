"""Self-distillation on synthetic grassland reflectance spectra."""
import argparse
import math
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from model import Encoder, Teacher, dino_loss


class Spectra(Dataset):
    def __init__(self, n, bands, species=8):
        g = torch.Generator().manual_seed(19)
        grid = torch.linspace(0, 1, bands)
        peaks = torch.rand(species, 3, generator=g)
        self.y = torch.randint(0, species, (n,), generator=g)
        d = grid[None, None] - peaks[self.y][..., None]
        self.x = torch.exp(-(d / 0.08) ** 2).sum(1) + 0.05 * torch.randn(n, bands, generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def view(x, gen):
    gain = 1 + 0.2 * torch.randn(len(x), 1, generator=gen)
    keep = (torch.rand(x.shape, generator=gen) > 0.2).float()
    return x * gain * keep + 0.05 * torch.randn(x.shape, generator=gen)


@torch.no_grad()
def neighbour_score(net, data, rank, world):
    z = torch.nn.functional.normalize(net.body(data.x[:512]), dim=-1)
    mine = torch.arange(rank, 512, world)
    sim = z[mine] @ z.t()
    sim[torch.arange(len(mine)), mine] = -9
    c = torch.tensor([(data.y[sim.argmax(1)] == data.y[mine]).sum().item(), len(mine)], dtype=torch.float64)
    dist.all_reduce(c)
    return (c[0] / c[1]).item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=6)
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--width", type=int, default=384)
    ap.add_argument("--bands", type=int, default=64)
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--dir", default="meadow_ckpt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(41)
    student = DDP(Encoder(args.bands, args.width, 64))
    teacher = Teacher(student.module)
    opt = torch.optim.AdamW(student.parameters(), lr=args.lr, weight_decay=0.04)
    data = Spectra(1920, args.bands)
    sampler = DistributedSampler(data, seed=8)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    steps = args.epochs * len(loader)
    sched = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda s: min(1, s / 10) * 0.5 * (1 + math.cos(math.pi * s / steps)))
    aug = torch.Generator().manual_seed(500 + rank)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        meter = torch.zeros(2, dtype=torch.float64)
        for x, _ in loader:
            views = [view(x, aug) for _ in range(2)]
            probs = teacher.targets(views)
            out = student(torch.cat(views)).chunk(2)
            loss = dino_loss(out, probs)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            teacher.follow(student.module)
            meter += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(meter)
        score = neighbour_score(teacher.net, data, rank, world)
        if rank == 0:
            print(f"epoch {epoch} loss {meter[0] / meter[1]:.4f} 1-nn {score:.3f} "
                  f"|center| {teacher.center.norm().item():.3f}", flush=True)

    if rank == 0:
        os.makedirs(args.dir, exist_ok=True)
        torch.save({"teacher": teacher.net.state_dict(), "center": teacher.center.detach()},
                   os.path.join(args.dir, "teacher.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
