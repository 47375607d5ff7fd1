from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from data import stage_loader
from stages import FirstStage, LastStage


@dataclass
class Config:
    samples: int = 100
    batch: int = 16
    micro: int = 4
    seq: int = 16
    vocab: int = 32
    d: int = 24
    epochs: int = 3
    lr: float = 4e-3


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=90))
    rank = dist.get_rank()
    cfg = Config()
    torch.manual_seed(8 + rank)
    role = "first" if rank == 0 else "last"
    stage = FirstStage(cfg, peer=1) if role == "first" else LastStage(cfg, peer=0)
    opt = torch.optim.Adam(stage.module.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        losses = []
        for batch in stage_loader(cfg, role, epoch):
            opt.zero_grad()
            losses.append(stage.run(batch))
            opt.step()
        if role == "last":
            print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
