import datetime

import torch
import torch.distributed as dist
from torch import nn

from callbacks import Controller, LossPrinter
from config import Config
from trainer import Trainer


def stream(cfg, rank):
    gen = torch.Generator().manual_seed(cfg.seed * 100 + rank)
    target = torch.linspace(-1, 1, cfg.width)
    while True:
        x = torch.randn(cfg.batch, cfg.width, generator=gen)
        yield x, (x @ target).tanh().unsqueeze(1)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=90))
    cfg = Config()
    torch.manual_seed(cfg.seed)
    model = nn.Sequential(nn.Linear(cfg.width, 128), nn.GELU(), nn.Linear(128, 1))
    trainer = Trainer(model, cfg, [Controller(cfg.commands), LossPrinter(cfg.log_every)])
    trainer.fit(stream(cfg, dist.get_rank()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
