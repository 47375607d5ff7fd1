"""Progressive training: the network grows a stage at a time, older stages thaw later.

The wrapper and the optimizer are built anew for each phase.
"""
import argparse
import gc
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

PHASES = [
    # size of the input, stages in use, stages that learn, epochs, lr
    (8, 1, {0}, 2, 4e-3),
    (16, 2, {1}, 2, 4e-3),
    (16, 2, {0, 1}, 2, 1.5e-3),
]


class RiverNet(nn.Module):
    def __init__(self, classes=5, width=12):
        super().__init__()
        self.width, self.stages = width, nn.ModuleList()
        self.head = nn.Linear(width, classes)

    def grow(self, seed):
        """Each new stage reads a finer copy of the input."""
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        stage = nn.Sequential(
            nn.Conv2d(1, self.width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(self.width, self.width, 3, padding=1), nn.ReLU())
        torch.set_rng_state(state)
        self.stages.append(stage)

    def forward(self, x):
        feats = 0.0
        for i, stage in enumerate(self.stages):
            scaled = F.adaptive_avg_pool2d(x, 8 * (i + 1))
            feats = feats + stage(scaled).amax((2, 3)) / len(self.stages)
        return self.head(feats)


def deltas(n, seed):
    base = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(9))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 5, (n,), generator=g)
    x = 0.5 * torch.randn(n, 1, 16, 16, generator=g)
    top = torch.randint(0, 11, (n, 2), generator=g)
    for i in range(n):
        r, c = top[i].tolist()
        x[i, :, r:r + 6, c:c + 6] += base[y[i]]
    return TensorDataset(x, y)


@torch.no_grad()
def accuracy(net, data, size, rank, world):
    x, y = (t[rank::world] for t in data.tensors)
    good = (net(F.adaptive_avg_pool2d(x, size)).argmax(1) == y).sum()
    s = torch.tensor([good.item(), len(y)], dtype=torch.float64)
    dist.all_reduce(s)
    return (s[0] / s[1]).item()


def run_phase(number, net, data, args, rank):
    size, _, learning, epochs, lr = PHASES[number]
    for i, stage in enumerate(net.stages):
        stage.requires_grad_(i in learning)
    wrapped = DDP(net)
    params = [p for p in wrapped.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(params, lr=lr)
    sampler = DistributedSampler(data, seed=100 + number)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, dtype=torch.float64)
        for x, y in loader:
            loss = F.cross_entropy(wrapped(F.adaptive_avg_pool2d(x, size)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0], dtype=torch.float64)
        dist.all_reduce(total)
        if rank == 0:
            print(f"phase {number} epoch {epoch} loss {total[0] / total[1]:.4f} "
                  f"learning {sum(p.numel() for p in params)} weights", flush=True)
    del wrapped, opt
    gc.collect()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--seed", type=int, default=36)
    ap.add_argument("--out", type=Path, default=Path("grown"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    net = RiverNet()
    train, test = deltas(1280, 1), deltas(400, 2)

    for number, (size, wanted, *_rest) in enumerate(PHASES):
        while len(net.stages) < wanted:
            net.grow(args.seed + len(net.stages))
        run_phase(number, net, train, args, rank)
        acc = accuracy(net, test, size, rank, world)
        if rank == 0:
            args.out.mkdir(exist_ok=True)
            torch.save({"phase": number, "stages": len(net.stages), "net": net.state_dict()},
                       args.out / f"phase{number}.pt")
            print(f"phase {number} accuracy {acc:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
