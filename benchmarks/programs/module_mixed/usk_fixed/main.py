import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainer import Trainer


class Forecaster(nn.Module):
    def __init__(self, horizon=4, d=40):
        super().__init__()
        self.rnn = nn.LSTM(1, d, batch_first=True)
        self.out = nn.Linear(d, horizon)

    def forward(self, x):
        return self.out(self.rnn(x[..., None])[0][:, -1])


def series(n=640, length=24, horizon=4):
    g = torch.Generator().manual_seed(48)
    t = torch.arange(length + horizon) / 6.0
    f, p = 0.5 + torch.rand(n, 1, generator=g), 6.283 * torch.rand(n, 1, generator=g)
    s = torch.sin(f * t + p) + 0.05 * torch.randn(n, length + horizon, generator=g)
    return TensorDataset(s[:, :length], s[:, length:])


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(53)
    trainer = Trainer(Forecaster(), nn.MSELoss())
    ds = series()
    sampler = DistributedSampler(ds, seed=2)
    loader = DataLoader(ds, batch_size=10, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        mean = trainer.epoch(loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {mean:.4f} updates {trainer.updates}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
