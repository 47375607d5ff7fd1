import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from slicedadam import SlicedAdam

# A job for a preemptible queue: it is cut in legs, every leg starts from the
# checkpoint of the leg before (a fresh model and optimizer object, as a new process would).


def friedman(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 10, generator=g)
    y = (10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
         + 10 * x[:, 3] + 5 * x[:, 4] + torch.randn(n, generator=g))
    return x, (y - 14.4) / 4.9


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 1))


class Leg:
    def __init__(self, args, rank, world):
        self.args, self.rank, self.world = args, rank, world
        self.net = build(args.seed)
        self.opt = SlicedAdam(list(self.net.parameters()), lr=args.lr, rank=rank, world=world)
        self.step = 0

    def save(self, path):
        moments = self.opt.export()
        if self.rank == 0:
            torch.save({"step": self.step, "net": self.net.state_dict(), "adam": moments}, path)
        dist.barrier()

    def restore(self, path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.step = state["step"]
        self.net.load_state_dict(state["net"])
        self.opt.import_(state["adam"])

    def order(self, epoch, n):
        g = torch.Generator().manual_seed(self.args.seed + 100 + epoch)
        return torch.randperm(n, generator=g)

    def run(self, x, y, until):
        bs = self.args.batch_size
        per_epoch = len(x) // (bs * self.world)
        total, seen = 0.0, 0
        while self.step < until:
            epoch, i = divmod(self.step, per_epoch)
            lo = (i * self.world + self.rank) * bs
            pick = self.order(epoch, len(x))[lo:lo + bs]
            loss = F.mse_loss(self.net(x[pick]).squeeze(1), y[pick])
            self.net.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            total, seen = total + loss.item(), seen + 1
        stat = torch.tensor([total, float(seen)])
        dist.all_reduce(stat)
        return (stat[0] / stat[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--legs", type=int, default=4)
    p.add_argument("--leg-steps", type=int, default=40)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--seed", type=int, default=5)
    p.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "out")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    args.out.mkdir(parents=True, exist_ok=True)
    x, y = friedman(2048, args.seed)
    xv, yv = friedman(512, args.seed + 1)
    path = args.out / "leg.pt"

    for number in range(args.legs):
        leg = Leg(args, rank, world)
        if number:
            leg.restore(path)
        mse = leg.run(x, y, until=(number + 1) * args.leg_steps)
        with torch.no_grad():
            val = F.mse_loss(leg.net(xv).squeeze(1), yv).item()
        if rank == 0:
            print(f"leg {number} step {leg.step} train {mse:.4f} val {val:.4f}", flush=True)
        leg.save(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
