"""Streams of unequal length in a join context; every process reads its own log files."""
import argparse
import os
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, IterableDataset

from turns import SharedStep


def write_logs(folder, files, seed):
    """Files of request traces; the later files are the longer ones."""
    folder.mkdir(parents=True)
    g = torch.Generator().manual_seed(seed)
    rule = torch.randn(9, generator=g)
    for n in range(files):
        rows = 120 + 35 * n
        x = torch.randn(rows, 9, generator=g)
        y = x @ rule + 0.5 * (x[:, 0] * x[:, 3]) + 0.1 * torch.randn(rows, generator=g)
        torch.save({"x": x, "y": y}, folder / f"trace_{n:02d}.pt")


class Traces(IterableDataset):
    def __init__(self, folder, rank, world, seed):
        self.files = sorted(folder.glob("trace_*.pt"))[rank::world]
        self.seed = seed
        self.epoch = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        for n in torch.randperm(len(self.files), generator=g).tolist():
            block = torch.load(self.files[n], map_location="cpu")
            for i in torch.randperm(len(block["y"]), generator=g).tolist():
                yield block["x"][i], block["y"][i]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--files", type=int, default=7)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=30)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "traces_run"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    logs = Path(folder[0]) / "logs"
    if rank == 0:
        write_logs(logs, args.files, args.seed)
    dist.barrier()

    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(9, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    step = SharedStep(net, torch.optim.Adam(net.parameters(), lr=args.lr))
    data = Traces(logs, rank, world, args.seed)
    loader = DataLoader(data, batch_size=args.batch)

    for epoch in range(args.epochs):
        data.epoch = epoch
        seen = torch.zeros(3)
        with Join([step]):
            for x, y in loader:
                loss = F.mse_loss(net(x).squeeze(-1), y, reduction="sum")
                loss.backward()
                step(len(y))
                seen += torch.tensor([loss.item(), len(y), 1])
        turns = int(seen[2])
        dist.all_reduce(seen)
        print(f"epoch {epoch} process {rank} took {turns} of {int(seen[2])} batches", flush=True)
        if rank == 0:
            print(f"epoch {epoch} mse {(seen[0] / seen[1]).item():.4f} over {int(seen[1])} rows", flush=True)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(net.state_dict(), os.path.join(args.out, "traces.pt"))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
