import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BASE = Path.cwd() / ("out_" + Path(__file__).stem)


class Net(nn.Module):
    def __init__(self, width=80):
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.mid = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = torch.tanh(self.stem(x))
        return self.head(torch.tanh(self.mid(x)))


def make_data():
    g = torch.Generator().manual_seed(17)
    x = torch.randn(480, 20, generator=g)
    return TensorDataset(x, (x[:, :4] ** 2).argmax(1))


def collect(model, optimizer, epoch):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments, "epoch": torch.tensor(epoch)}


def restore(model, optimizer, path):
    state = collect(model, optimizer, 0)
    dcp.load(state, checkpoint_id=str(path))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return int(state["epoch"])


def run_epoch(model, optimizer, loader, epoch):
    loader.sampler.set_epoch(epoch)
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total / len(loader)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--resume", action="store_true")
    opts = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0 and not opts.resume:
        shutil.rmtree(BASE, ignore_errors=True)
    dist.barrier()

    torch.manual_seed(5)
    model = DDP(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = make_data()
    loader = DataLoader(data, batch_size=20, sampler=DistributedSampler(data, shuffle=True, seed=1))
    first = restore(model, optimizer, BASE / "current") if opts.resume else 0
    for epoch in range(first, first + opts.epochs):
        mean = run_epoch(model, optimizer, loader, epoch)
        if rank == 0:
            print(f"epoch {epoch} loss {mean.item():.4f}", flush=True)
    dcp.save(collect(model, optimizer, first + opts.epochs), checkpoint_id=str(BASE / f"epoch{first + opts.epochs}"))
    if rank == 0:
        link = BASE / "current"
        link.unlink(missing_ok=True)
        link.symlink_to(f"epoch{first + opts.epochs}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
