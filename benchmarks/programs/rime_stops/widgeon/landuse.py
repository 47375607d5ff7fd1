import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from telemetry import NullTelemetry, Telemetry
from tiles import Tiles


def conv_net(classes):
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(256, classes),
    )


def main():
    p = argparse.ArgumentParser("land use tiles")
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=40)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--events", default="events.jsonl")
    args = p.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    telemetry = Telemetry(args.events) if rank == 0 else NullTelemetry()
    dataset = Tiles()
    sampler = DistributedSampler(dataset, seed=2, drop_last=True)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True,
                        num_workers=args.workers, persistent_workers=True)
    torch.manual_seed(2)
    model = DDP(conv_net(4))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        stats = torch.zeros(3)
        for x, y in loader:
            telemetry.count("decoded", len(y))
            out = model(x)
            loss = F.cross_entropy(out, y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            stats += torch.tensor([loss.item() * len(y), (out.argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(stats)
        if rank == 0:
            print(f"epoch {epoch} loss {stats[0] / stats[2]:.4f} acc {stats[1] / stats[2]:.3f}", flush=True)
            torch.save(model.module.state_dict(), "landuse.pt")

    telemetry.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
