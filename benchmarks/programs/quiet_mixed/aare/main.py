from datetime import timedelta

import torch
import torch.distributed as dist

from config import Config
from data import build_loader
from engine import Engine
from model import build_model


def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=20))
    cfg = Config()
    torch.manual_seed(cfg.seed)
    loader, sampler = build_loader(cfg)
    engine = Engine(cfg, build_model(cfg), dist.get_rank())
    engine.fit(loader, sampler)
    if dist.get_rank() == 0:
        torch.save(engine.model.module.state_dict(), "final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
