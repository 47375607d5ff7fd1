import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


@dataclasses.dataclass
class HParams:
    epochs: int = 8
    batch: int = 16
    lr: float = 2e-2
    window: int = 24


class Series(Dataset):
    def __init__(self, n, seed, window):
        g = torch.Generator().manual_seed(seed)
        self.raw = torch.cumsum(torch.randn(n + window, generator=g) * 0.3, 0)
        self.raw += torch.sin(torch.arange(n + window) / 5)
        self.window = window

    def __len__(self):
        return len(self.raw) - self.window

    def __getitem__(self, i):
        w = self.raw[i:i + self.window + 1]
        return (w[:-1] - w[0]).unsqueeze(1), w[-1] - w[0]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1]).squeeze(1)


class Trainer:
    def __init__(self, hp):
        self.hp = hp
        self.rank = dist.get_rank()
        torch.manual_seed(1)
        self.model = DistributedDataParallel(Forecaster())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=hp.lr)
        self.sched = ReduceLROnPlateau(self.opt, factor=0.5, patience=0, threshold=1e-2)
        train, val = Series(320, 0, hp.window), Series(45, 1, hp.window)
        self.sampler = DistributedSampler(train)
        self.train_dl = DataLoader(train, hp.batch, sampler=self.sampler)
        self.val_dl = DataLoader(val, hp.batch, sampler=DistributedSampler(val, shuffle=False))

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_dl:
            loss = nn.functional.smooth_l1_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        tot = cnt = 0.0
        for x, y in self.val_dl:
            tot += nn.functional.smooth_l1_loss(self.model.module(x), y, reduction="sum").item()
            cnt += len(y)
        return tot / cnt

    def average(self, value):
        t = torch.tensor(value)
        dist.all_reduce(t)
        return t.item() / dist.get_world_size()

    def fit(self):
        for epoch in range(self.hp.epochs):
            self.sampler.set_epoch(epoch)
            self.train_epoch()
            val = self.validate()
            avg = self.average(val)
            self.sched.step(avg)
            if self.rank == 0:
                print(f"epoch {epoch} val {avg:.4f} lr {self.opt.param_groups[0]['lr']:.2e}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(HParams()).fit()
    dist.destroy_process_group()
