"""Trainer that survives a preemption: state is written mid-epoch and picked up again."""
import argparse
import json
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("willow")


class Rows(Dataset):
    def __init__(self, n=256):
        g = torch.Generator().manual_seed(99)
        self.x = torch.randn(n, 12, generator=g)
        self.y = (self.x[:, :3].prod(1) > 0).long()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return i, self.x[i], self.y[i]


class Trainer:
    def __init__(self, cfg, folder):
        self.cfg, self.folder = cfg, folder
        torch.manual_seed(cfg["seed"])
        self.model = DDP(nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2)))
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg["lr"])
        data = Rows()
        self.sampler = DistributedSampler(data, shuffle=True, seed=cfg["seed"])
        self.loader = DataLoader(data, batch_size=cfg["bs"], sampler=self.sampler)
        self.epoch = self.batch = self.step = 0

    @property
    def file(self):
        return os.path.join(self.folder, "state.pt")

    def save(self):
        if dist.get_rank() == 0:
            torch.save({"model": self.model.module.state_dict(), "opt": self.opt.state_dict(),
                        "pos": [self.epoch, self.batch, self.step]}, self.file)
        dist.barrier()

    def load(self):
        if not os.path.exists(self.file):
            return
        state = torch.load(self.file, map_location="cpu")
        self.model.module.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])
        self.epoch, self.batch, self.step = state["pos"]
        log.info("resumed at epoch %d batch %d", self.epoch, self.batch)

    def run_epoch(self, stop_at):
        skip = self.batch
        if skip == 0:
            self.sampler.set_epoch(self.epoch)
        for i, (idx, x, y) in enumerate(self.loader):
            if i < skip:
                continue
            loss = F.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.step += 1
            self.batch = i + 1
            if self.step == stop_at:
                self.save()
                return False
        self.epoch, self.batch = self.epoch + 1, 0
        if dist.get_rank() == 0:
            log.info("epoch %d step %d loss %.4f", self.epoch, self.step, loss.item())
        return True

    def fit(self, stop_at=None):
        while self.epoch < self.cfg["epochs"]:
            if not self.run_epoch(stop_at):
                return False
        return True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", type=json.loads, default={"seed": 13, "lr": 3e-3, "bs": 16, "epochs": 4})
    ap.add_argument("--preempt-at", type=int, default=12)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    first = Trainer(args.config, folder[0])
    if not first.fit(stop_at=args.preempt_at):
        del first
        second = Trainer(args.config, folder[0])
        second.load()
        second.fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
