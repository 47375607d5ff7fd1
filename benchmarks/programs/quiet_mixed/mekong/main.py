from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from data import loader
from schedule import FillDrain
from stages import make_stage


@dataclass
class Cfg:
    items: int = 1010
    dim: int = 20
    classes: int = 5
    width: int = 64
    batch: int = 64
    micro: int = 16
    epochs: int = 3
    lr: float = 3e-3
    seed: int = 23


def main(cfg: Cfg):
    dist.init_process_group("gloo", timeout=timedelta(minutes=12))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(cfg.seed + rank)
    stage = make_stage(rank, world, cfg.width, cfg.dim, cfg.classes)
    opt = torch.optim.Adam(stage.parameters(), lr=cfg.lr)
    pipe = FillDrain(stage, rank, world, cfg.width, cfg.micro)
    batches = loader(cfg)
    for epoch in range(cfg.epochs):
        seen = []
        for x, y in batches:
            opt.zero_grad()
            seen.append(pipe.step(x, y))
            opt.step()
        if rank == world - 1:
            print(f"epoch {epoch}: loss {sum(seen) / len(seen):.4f}", flush=True)
    torch.save(stage.state_dict(), f"stage{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Cfg())
