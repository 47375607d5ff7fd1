import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DistributedSampler, default_collate

from prefetch import ThreadedBatches


class SatelliteArchive:
    """Patches behind an HTTP gateway; one read costs a few milliseconds of latency."""

    def __init__(self, n=480, latency=0.004):
        self.n, self.latency = n, latency
        g = torch.Generator().manual_seed(31)
        self.kind = torch.randint(0, 3, (n,), generator=g)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(self.latency)
        g = torch.Generator().manual_seed(i)
        ax = torch.linspace(0, 6.28, 48)
        k = int(self.kind[i]) + 2
        wave = torch.sin(k * ax)[:, None] * torch.cos(k * ax)[None]
        return (wave + 0.6 * torch.randn(48, 48, generator=g))[None], k - 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(),
                                  nn.Conv2d(16, 24, 5, stride=2, padding=2), nn.ReLU(),
                                  nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1))
        self.fc = nn.Linear(24, 3)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch", type=int, default=16)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    archive = SatelliteArchive()
    sampler = DistributedSampler(archive, seed=3, drop_last=True)
    batches = ThreadedBatches(archive, sampler, args.batch, default_collate)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        waited, t_end, t0 = 0.0, time.perf_counter(), time.perf_counter()
        for image, kind in batches:
            waited += time.perf_counter() - t_end
            loss = nn.functional.cross_entropy(model(image), kind)
            opt.zero_grad()
            loss.backward()
            opt.step()
            t_end = time.perf_counter()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} time {time.perf_counter() - t0:.1f}s "
                  f"of it waiting for data {waited:.2f}s", flush=True)
    batches.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
