from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from corpus import make_loader
from lm import TinyLM
from loop import train


@dataclass
class Cfg:
    turns: int = 960
    vocab: int = 64
    micro_batch: int = 4
    accumulate: int = 4
    lr: float = 3e-3


def main():
    cfg = Cfg()
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = DistributedDataParallel(TinyLM(cfg.vocab))
    optim = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    train(model, optim, make_loader(cfg), cfg.accumulate, dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
