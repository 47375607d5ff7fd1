"""Denoising training with random crops and noise made inside the dataset."""
import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class RandomView:
    """Random offset, gain and noise; draws from its own generator."""

    def __init__(self, seed, width):
        self.R = np.random.default_rng(seed)
        self.width = width

    def reseed(self, *key):
        self.R = np.random.default_rng(key)

    def __call__(self, wave):
        at = int(self.R.integers(0, len(wave) - self.width))
        gain = self.R.uniform(0.7, 1.3)
        crop = wave[at:at + self.width] * gain
        noise = self.R.normal(0, 0.3, self.width)
        return crop.astype(np.float32), (crop + noise).astype(np.float32)


class Waves(Dataset):
    def __init__(self, n, length, view):
        t = np.linspace(0, 6 * np.pi, length)
        rng = np.random.default_rng(1)
        self.waves = [np.sin(t * rng.uniform(0.5, 2) + rng.uniform(0, 6)) for _ in range(n)]
        self.view = view

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        clean, noisy = self.view(self.waves[i])
        return torch.from_numpy(noisy), torch.from_numpy(clean)


def start_worker(worker_id):
    """Gives each loader process its own random numbers."""
    info = torch.utils.data.get_worker_info()
    np.random.seed(info.seed % 2 ** 32)


class Denoiser(nn.Module):
    def __init__(self, ch=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, ch, 7, padding=3), nn.ReLU(),
            nn.Conv1d(ch, ch, 7, padding=3), nn.ReLU(),
            nn.Conv1d(ch, 1, 7, padding=3),
        )

    def forward(self, x):
        return self.net(x.unsqueeze(1)).squeeze(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--waves", type=int, default=256)
    ap.add_argument("--width", type=int, default=64)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    data = Waves(args.waves, 256, RandomView(33, args.width))
    sampler = DistributedSampler(data, shuffle=True, seed=5)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=args.workers,
                        worker_init_fn=start_worker)
    ddp = DDP(Denoiser())
    opt = torch.optim.Adam(ddp.parameters(), lr=3e-3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total, n = 0.0, 0
        for noisy, clean in loader:
            loss = F.mse_loss(ddp(noisy), clean)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total, n = total + loss.item(), n + 1
        if rank == 0:
            print(f"epoch {epoch} mse {total / n:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
