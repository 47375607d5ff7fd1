import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from engine import fit


def conv(cin, cout):
    return nn.Sequential(nn.Conv1d(cin, cout, 5, stride=2, padding=2),
                         nn.GroupNorm(4, cout), nn.ReLU())


class ECGNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.features = nn.Sequential(conv(2, 12), conv(12, 24), conv(24, 24))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.4), nn.Linear(24 * 16, classes))

    def forward(self, x):
        return self.head(self.features(x))


def beats(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    t = torch.linspace(0, 1, 128)
    freq = torch.tensor([3.0, 4.0, 5.5, 7.0])[y]
    phase = torch.rand(n, 1, generator=g) * 6.28
    wave = torch.sin(6.28 * freq[:, None] * t + phase)
    x = torch.stack([wave, wave.abs()], 1) * 3 + 1.5
    return x + torch.randn(x.shape, generator=g), y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--eval-every", type=int, default=10)
    p.add_argument("--batch", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(5)
    model = DDP(ECGNet())
    torch.manual_seed(5 + dist.get_rank())
    train = TensorDataset(*beats(960, 1))
    sampler = DistributedSampler(train, seed=5, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, loader, sampler, opt, beats(240, 2), args.epochs, args.eval_every,
        logging.getLogger("ecg"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
