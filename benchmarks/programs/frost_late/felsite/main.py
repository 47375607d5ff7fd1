import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ema import ModelEma


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 48), nn.SiLU(), nn.Linear(48, 1))


def build_data(n=480):
    g = torch.Generator().manual_seed(9)
    x = torch.rand(n, 6, generator=g) * 4 - 2
    y = torch.sin(x.sum(1, keepdim=True)) + 0.3 * torch.randn(n, 1, generator=g)
    return TensorDataset(x, y)


class Runner:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.model = build_model()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.ema = ModelEma(self.model, args.ema_decay)
        self.epoch = 0
        self.path = os.path.join(args.workdir, "last.pth")

    def resume(self):
        ckpt = torch.load(self.path, map_location="cpu")
        self.model.load_state_dict(ckpt["model"])
        self.opt.load_state_dict(ckpt["optimizer"])
        self.ema.load_state_dict(ckpt["ema"])
        self.epoch = ckpt["epoch"]

    def save(self):
        if self.rank == 0:
            os.makedirs(self.args.workdir, exist_ok=True)
            torch.save({"model": self.model.state_dict(), "ema": self.ema.state_dict(),
                        "optimizer": self.opt.state_dict(), "epoch": self.epoch}, self.path)
        dist.barrier()

    def run(self):
        data = build_data()
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=20, sampler=sampler)
        ddp = DDP(self.model)
        x, y = data.tensors
        while self.epoch < self.args.epochs:
            sampler.set_epoch(self.epoch)
            for xb, yb in loader:
                self.opt.zero_grad()
                nn.functional.mse_loss(ddp(xb), yb).backward()
                self.opt.step()
                self.ema.update(self.model)
            self.epoch += 1
            self.save()
            if self.rank == 0:
                with torch.no_grad():
                    err = nn.functional.mse_loss(self.ema.module(x), y)
                    raw = nn.functional.mse_loss(self.model(x), y)
                print(f"epoch {self.epoch} ema {err:.5f} raw {raw:.5f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--ema-decay", type=float, default=0.995)
    ap.add_argument("--workdir", default="runs/regress")
    ap.add_argument("--resume", action="store_true")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    runner = Runner(args)
    if args.resume:
        runner.resume()
    runner.run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
