"""Time-series forecasting with a small callback engine (train on sensor windows, validate per site)."""
import argparse
import logging
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger("forecast")


@dataclass
class Options:
    window: int = 24
    horizon: int = 4
    hidden: int = 16
    batch_size: int = 16
    max_epochs: int = 16
    lr: float = 3e-3
    patience: int = 3
    min_delta: float = 0.003
    seed: int = 7
    out: Path = field(default_factory=lambda: Path("runs") / Path(__file__).stem)


class SensorWindows(Dataset):
    def __init__(self, opt: Options, n_sites=6, steps=160):
        g = torch.Generator().manual_seed(opt.seed)
        t = torch.arange(steps).float()
        self.series, self.index = [], []
        for site in range(n_sites):
            noise = 0.05 + 0.12 * site
            phase = torch.rand((), generator=g) * 2 * math.pi
            self.series.append(torch.sin(t / 6 + phase) + noise * torch.randn(steps, generator=g))
            self.index += [(site, s) for s in range(0, steps - opt.window - opt.horizon, 2)]
        self.opt = opt

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        site, s = self.index[i]
        w, h = self.opt.window, self.opt.horizon
        x = self.series[site][s:s + w]
        return x.unsqueeze(-1), self.series[site][s + w:s + w + h]


class GRUForecaster(nn.Module):
    def __init__(self, opt: Options):
        super().__init__()
        self.rnn = nn.GRU(1, opt.hidden, batch_first=True)
        self.head = nn.Sequential(nn.LayerNorm(opt.hidden), nn.Linear(opt.hidden, opt.horizon))

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.head(out[:, -1])


class Callback:
    def on_fit_start(self, engine): ...
    def on_epoch_end(self, engine): ...
    def on_fit_end(self, engine): ...


class EarlyStopping(Callback):
    def __init__(self, patience, min_delta):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = float("inf"), 0

    def on_epoch_end(self, engine):
        current = engine.state["val_loss"]
        if current < self.best - self.min_delta:
            self.best, self.bad = current, 0
        else:
            self.bad += 1
        if self.bad >= self.patience:
            logger.info("no progress for %d epochs, best %.4f", self.bad, self.best)
            engine.should_stop = True


class BestCheckpoint(Callback):
    def __init__(self, folder: Path):
        self.folder, self.best = folder, float("inf")

    def on_fit_start(self, engine):
        if engine.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)

    def on_epoch_end(self, engine):
        if engine.rank == 0 and engine.state["val_loss"] < self.best:
            self.best = engine.state["val_loss"]
            torch.save({"model": engine.model.module.state_dict(), "epoch": engine.epoch},
                       self.folder / "best.pt")


class LogLines(Callback):
    def on_epoch_end(self, engine):
        if engine.rank == 0:
            logger.info("epoch %2d train %.4f val %.4f", engine.epoch,
                        engine.state["train_loss"], engine.state["val_loss"])


class Engine:
    def __init__(self, opt: Options, callbacks):
        self.opt, self.callbacks = opt, callbacks
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.epoch, self.should_stop, self.state = 0, False, {}
        torch.manual_seed(opt.seed)
        data = SensorWindows(opt)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1)).tolist()
        cut = int(0.75 * len(order))
        train, val = Subset(data, order[:cut]), Subset(data, sorted(order[cut:]))
        self.sampler = DistributedSampler(train, seed=opt.seed)
        self.train_loader = DataLoader(train, opt.batch_size, sampler=self.sampler)
        per_rank = math.ceil(len(val) / self.world)
        mine = range(self.rank * per_rank, min(len(val), (self.rank + 1) * per_rank))
        self.val_loader = DataLoader(Subset(val, list(mine)), opt.batch_size)
        self.model = DDP(GRUForecaster(opt))
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=opt.lr)
        self.sched = torch.optim.lr_scheduler.OneCycleLR(
            self.optim, max_lr=opt.lr * 4, total_steps=opt.max_epochs * len(self.train_loader))

    def emit(self, name):
        for cb in self.callbacks:
            getattr(cb, name)(self)

    def train_one_epoch(self):
        self.model.train()
        self.sampler.set_epoch(self.epoch)
        total = 0.0
        for x, y in self.train_loader:
            loss = nn.functional.smooth_l1_loss(self.model(x), y)
            self.optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optim.step()
            self.sched.step()
            total += loss.item()
        return total / len(self.train_loader)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        err, count = 0.0, 0
        for x, y in self.val_loader:
            err += (self.model.module(x) - y).pow(2).sum().item()
            count += y.numel()
        sums = torch.tensor([err, count], dtype=torch.float64)
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()

    def fit(self):
        self.emit("on_fit_start")
        while self.epoch < self.opt.max_epochs and not self.should_stop:
            self.state["train_loss"] = self.train_one_epoch()
            self.state["val_loss"] = self.validate()
            self.emit("on_epoch_end")
            self.epoch += 1
        dist.barrier()
        self.emit("on_fit_end")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--patience", type=int, default=Options.patience)
    parser.add_argument("--max-epochs", type=int, default=Options.max_epochs)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    dist.init_process_group("gloo")
    opt = Options(patience=args.patience, max_epochs=args.max_epochs)
    Engine(opt, [EarlyStopping(opt.patience, opt.min_delta), BestCheckpoint(opt.out), LogLines()]).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
