import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class BestKeeper:
    """Keeps the best few checkpoints; the pointer names the newest that is kept."""

    def __init__(self, exp, keep=2):
        self.exp = Path(exp)
        self.ckpts = self.exp / "ckpts"
        self.keep = keep
        self.scores = {}

    def point(self):
        newest = max(self.scores, key=lambda n: int(n.split("_")[1].split(".")[0]))
        tmp = self.exp / "latest.tmp"
        tmp.write_text(f"ckpts/{newest}\n")
        os.replace(tmp, self.exp / "latest")

    def save(self, epoch, score, model, opt):
        self.ckpts.mkdir(parents=True, exist_ok=True)
        name = f"epoch_{epoch}.pt"
        torch.save({"epoch": epoch, "model": model.module.state_dict(), "opt": opt.state_dict(),
                    "scores": {**self.scores, name: score}}, self.ckpts / name)
        self.scores[name] = score
        self.point()
        while len(self.scores) > self.keep:
            worst = max(self.scores, key=self.scores.get)
            del self.scores[worst]
            self.point()
            (self.ckpts / worst).unlink()

    def load(self, model, opt):
        path = self.exp / (self.exp / "latest").read_text().strip()
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        self.scores = {n: s for n, s in state["scores"].items() if (self.ckpts / n).exists()}
        return state["epoch"] + 1


def split(n_train, n_val):
    g = torch.Generator().manual_seed(41)
    w = torch.randn(96, 6, generator=g)
    x = torch.randn(n_train + n_val, 96, generator=g)
    y = (x @ w + 6 * torch.randn(len(x), 6, generator=g)).argmax(1)
    return TensorDataset(x[:n_train], y[:n_train]), (x[n_train:], y[n_train:])


@torch.no_grad()
def validate(model, x, y):
    rank, world = dist.get_rank(), dist.get_world_size()
    model.eval()
    mine = slice(rank, None, world)
    total = F.cross_entropy(model(x[mine]), y[mine], reduction="sum")
    model.train()
    dist.all_reduce(total)
    return total.item() / len(y)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, (vx, vy) = split(4096, 1000)
    sampler = DistributedSampler(train, shuffle=True, drop_last=True)
    loader = DataLoader(train, batch_size=128, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(96, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 6)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    keeper = BestKeeper("orchard_exp")
    start = keeper.load(model, opt) if args.resume else 0
    dist.barrier()
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(model(x), y).backward()
            opt.step()
        score = validate(model, vx, vy)
        if dist.get_rank() == 0:
            keeper.save(epoch, score, model, opt)
            print(epoch, round(score, 4), sorted(keeper.scores), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
