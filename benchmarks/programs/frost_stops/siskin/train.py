import argparse
import contextlib
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from notice import Notice, announce


class Documents(Dataset):
    """Bag-of-words documents; long ones take longer to parse."""

    def __init__(self, n=4096, vocab=200, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.rand(n, vocab, generator=g).pow(6)
        w = torch.randn(vocab, generator=g)
        self.y = (self.x @ w > 0).long()
        self.words = torch.where(torch.arange(n) % 2 == 1, 900, 120)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        time.sleep(float(self.words[i]) * 1e-5)
        return self.x[i], self.y[i]


def shared_folder():
    box = [tempfile.mkdtemp(prefix="accum_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def save(folder, model, opt, step):
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "opt": opt.state_dict(), "step": step},
                   os.path.join(folder, f"step{step}.pt"))
    dist.barrier()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=40)
    ap.add_argument("--accum", type=int, default=10)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--warn-at", type=int, default=15)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    notice = Notice()
    folder = shared_folder()

    data = Documents()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DDP(nn.Sequential(nn.Linear(200, 32), nn.ReLU(), nn.Linear(32, 2)))
    opt = torch.optim.SGD(model.parameters(), lr=0.2)

    update = 0
    micro = 0
    for x, y in loader:
        last = micro % args.accum == args.accum - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x), y) / args.accum
            loss.backward()
        micro += 1
        if last:
            opt.step()
            opt.zero_grad()
            update += 1
            if rank == 0 and update % 5 == 0:
                print(f"update {update} loss {loss.item() * args.accum:.4f}", flush=True)
            if update == args.warn_at:
                announce(0.15)
            stop = torch.tensor([float(notice.raised or update >= args.updates)])
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item() > 0:
                break

    save(folder, model, opt, update)
    if rank == 0:
        print("stopped at", update, "checkpoint in", folder, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
