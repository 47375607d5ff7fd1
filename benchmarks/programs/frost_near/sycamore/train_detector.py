import argparse
import logging
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Boxes(Dataset):
    def __init__(self, n=640):
        self.samples = [self.draw(i) for i in range(n)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]

    @staticmethod
    def draw(i):
        g = torch.Generator().manual_seed(7000 + i)
        lo = torch.randint(0, 14, (2,), generator=g)
        size = torch.randint(4, 10, (2,), generator=g)
        image = 0.3 * torch.randn(1, 24, 24, generator=g)
        image[0, lo[0]:lo[0] + size[0], lo[1]:lo[1] + size[1]] += 1.0
        return image, torch.cat([lo, size]).float() / 24


class Telemetry:
    """Per-host readings, put together on rank 0 now and then."""

    def __init__(self, every):
        self.every = every
        self.times, self.events = [], []

    def tick(self, step, seconds, loss):
        self.times.append(seconds)
        if seconds > 1.0:
            self.events.append({"step": step, "seconds": seconds})
        if step % self.every:
            return
        mine = {"host": os.uname().nodename, "median_ms": 1e3 * statistics.median(self.times),
                "slow": self.events, "loss": loss.item()}
        rows = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(mine, rows)
        self.times, self.events = [], []
        if rows:
            logging.info("step %d %s", step, " | ".join(
                f"r{i} {r['median_ms']:.0f}ms loss {r['loss']:.4f}" for i, r in enumerate(rows)))


def save(model, opt, step, folder):
    if dist.get_rank() == 0:
        path = os.path.join(folder, "last.pt")
        torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step},
                   path + ".part")
        os.replace(path + ".part", path)
    dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--telemetry-every", type=int, default=15)
    ap.add_argument("--save-every", type=int, default=30)
    ap.add_argument("--folder", default=os.path.join(tempfile.gettempdir(), "box_detector"))
    args = ap.parse_args()
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    os.makedirs(args.folder, exist_ok=True)
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
                        nn.Flatten(), nn.Linear(16 * 25, 64), nn.ReLU(), nn.Linear(64, 4))
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = Boxes()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 16, sampler=sampler, drop_last=True)
    telemetry, step = Telemetry(args.telemetry_every), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for image, box in loader:
            t = time.perf_counter()
            loss = nn.functional.smooth_l1_loss(model(image), box)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            telemetry.tick(step, time.perf_counter() - t, loss.detach())
            if step % args.save_every == 0:
                save(model, opt, step, args.folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
