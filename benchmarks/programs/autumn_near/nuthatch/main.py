import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F

from engine import Engine
from layers import Model


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=180)
    p.add_argument("--batch", type=int, default=200)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--lr", type=float, default=0.05)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(19)
    model = Model(20, args.dim, 6)
    engine = Engine(model, args.lr)
    rule = torch.randn(2, 20, 6, generator=torch.Generator().manual_seed(8))
    gen = torch.Generator().manual_seed(rank + 40)
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch, 20, generator=gen)
        y = torch.einsum("nd,ndc->nc", x, rule[(x[:, 0] * x[:, 1] > 0).long()]).argmax(-1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        engine.step(loss)
        if step % 20 == 0:
            m = torch.stack([loss.detach(), (logits.argmax(-1) == y).float().mean()])
            dist.all_reduce(m)
            m /= dist.get_world_size()
            if rank == 0:
                print(f"step {step} loss {m[0]:.3f} acc {m[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
