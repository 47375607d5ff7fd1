import argparse
import json
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

logger = logging.getLogger(__name__)
DEFAULTS = {"hidden": 40, "batch_size": 32, "lr": 0.1, "factor": 0.5, "patience": 0,
            "epochs": 8, "seed": 21}


def make_dataset(n=1800, features=10, seed=21):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=g)
    w = torch.randn(features, 1, generator=g)
    y = torch.tanh(x @ w) + 0.3 * torch.randn(n, 1, generator=g)
    return TensorDataset(x, y)


class Experiment:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg["seed"])
        full = make_dataset()
        train, valid = random_split(full, [1440, 360], generator=torch.Generator().manual_seed(1))
        self.train_sampler = DistributedSampler(train, seed=cfg["seed"])
        self.train_loader = DataLoader(train, cfg["batch_size"], sampler=self.train_sampler,
                                       drop_last=True)
        self.valid_loader = DataLoader(valid, 60, sampler=DistributedSampler(valid, shuffle=False))
        net = nn.Sequential(nn.Linear(10, cfg["hidden"]), nn.ReLU(),
                            nn.Linear(cfg["hidden"], cfg["hidden"]), nn.ReLU(),
                            nn.Linear(cfg["hidden"], 1))
        self.model = DistributedDataParallel(net)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=cfg["lr"], momentum=0.9)
        self.sched = ReduceLROnPlateau(self.opt, factor=cfg["factor"], patience=cfg["patience"])
        self.criterion = nn.MSELoss()

    def train_one(self, epoch):
        self.train_sampler.set_epoch(epoch)
        self.model.train()
        for x, y in self.train_loader:
            self.opt.zero_grad()
            self.criterion(self.model(x), y).backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        se, n = torch.zeros(()), 0
        for x, y in self.valid_loader:
            se += nn.functional.mse_loss(self.model.module(x), y, reduction="sum")
            n += len(x)
        return se / n

    def run(self):
        for epoch in range(self.cfg["epochs"]):
            self.train_one(epoch)
            val = self.validate()
            self.sched.step(val)
            logger.info("epoch %d valid mse %.4f lr %.4g", epoch, val.item(),
                        self.opt.param_groups[0]["lr"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", help="json file with overrides")
    args = parser.parse_args()
    cfg = dict(DEFAULTS)
    if args.config:
        with open(args.config) as f:
            cfg.update(json.load(f))
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if int(os.environ["RANK"]) == 0 else logging.WARNING,
                        format="%(asctime)s %(message)s")
    Experiment(cfg).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
