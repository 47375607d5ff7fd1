import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from monitors import Stat, effective_rank, record


class Stack(nn.Module):
    def __init__(self, d, h, depth):
        super().__init__()
        self.inp = nn.Linear(d, h)
        self.acts = nn.ModuleList(nn.ReLU() for _ in range(depth))
        self.mids = nn.ModuleList(nn.Linear(h, h) for _ in range(depth))
        self.out = nn.Linear(h, 1)

    def forward(self, x):
        x = self.inp(x)
        for m, a in zip(self.mids, self.acts):
            x = x + a(m(x))
        return self.out(x)


STAGES = [dict(noise=0.0, freq=1.0, steps=80), dict(noise=0.1, freq=1.5, steps=80), dict(noise=0.2, freq=2.0, steps=80)]


def target(x, freq):
    return torch.sin(freq * x[:, :4].sum(1, keepdim=True)) + 0.3 * x[:, 4:8].prod(1, keepdim=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--depth", type=int, default=3)
    p.add_argument("--batch", type=int, default=192)
    p.add_argument("--probe-every", type=int, default=8)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    net = Stack(args.dim, args.width, args.depth)
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(10 + rank)
    held = torch.randn(256, args.dim, generator=torch.Generator().manual_seed(99))
    stats, step = {}, 0

    for k, stage in enumerate(STAGES):
        # later stages watch one more block
        if k < args.depth:
            stats[f"block{k}"] = Stat()
            net.acts[k].register_forward_hook(stats[f"block{k}"])
        for _ in range(stage["steps"]):
            x = torch.randn(args.batch, args.dim, generator=gen) * 0.6
            y = target(x, stage["freq"])
            x = x + stage["noise"] * torch.randn(x.shape, generator=gen)
            loss = nn.functional.mse_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % args.probe_every == 0:
                net.eval()
                with torch.no_grad(), record(dict(net.named_children(), **{f"mid{i}": m for i, m in enumerate(net.mids)})) as seen:
                    err = nn.functional.mse_loss(net(held), target(held, stage["freq"])).item()
                net.train()
                er = effective_rank(seen["mid1"][0])
                if rank == 0 and step % 40 == 0:
                    print(f"stage {k} step {step} loss {loss.item():.3f} held {err:.3f} erank {er:.1f} | " +
                          " | ".join(f"{n} {s.line()}" for n, s in stats.items()), flush=True)
        for s in stats.values():
            s.reset()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
