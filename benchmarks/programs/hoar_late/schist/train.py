import argparse
import json
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
logger = logging.getLogger(__name__)


def load_config(path):
    cfg = json.loads(Path(path).read_text())
    logger.info("config %s", cfg["dist"])
    return cfg


def init_distributed(cfg):
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        backend=cfg["dist"]["backend"],
        init_method="env://",
        world_size=int(os.environ["WORLD_SIZE"]),
        rank=rank,
    )
    return rank


def build(cfg):
    width = cfg["model"]["width"]
    layers = [nn.Linear(8, width), nn.ReLU()]
    for _ in range(cfg["model"]["depth"]):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 3))


def run(cfg, rank):
    g = torch.Generator().manual_seed(11)
    x = torch.randn(960, 8, generator=g)
    ds = TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 1).long())
    sampler = DistributedSampler(ds, shuffle=True)
    loader = DataLoader(ds, cfg["optim"]["batch_size"], sampler=sampler)
    model = DistributedDataParallel(build(cfg))
    opt = torch.optim.AdamW(model.parameters(), lr=cfg["optim"]["lr"])
    for epoch in range(cfg["optim"]["epochs"]):
        sampler.set_epoch(epoch)
        running = 0.0
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item()
        if rank == 0:
            logger.info("epoch %d loss %.4f", epoch, running / len(loader))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default=str(Path(__file__).with_name("config.json")))
    cli = parser.parse_args()
    config = load_config(cli.config)
    r = init_distributed(config)
    torch.manual_seed(5)
    run(config, r)
    dist.destroy_process_group()
