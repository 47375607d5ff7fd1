import argparse
import ctypes
import signal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from index import ShardIndex, Waves


def end_with_parent(worker_id):
    ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)


def build_model():
    return nn.Sequential(nn.Unflatten(1, (1, 32)), nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(),
                         nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(32, 3))


def train_epoch(model, loader, opt):
    total = 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--workers", type=int, default=1)
    ap.add_argument("--rescan-every", type=int, default=2)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    main_rank = dist.get_rank() == 0
    torch.manual_seed(1)
    index = ShardIndex()
    data = Waves(index)
    sampler = DistributedSampler(data, seed=9)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=args.workers, worker_init_fn=end_with_parent,
                        multiprocessing_context="fork")
    model = DDP(build_model())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, opt)
        if main_rank:
            print(f"epoch {epoch} loss {loss:.4f} rows {len(index)}", flush=True)
            if (epoch + 1) % args.rescan_every == 0:
                index.rescan()
                index.wait()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
