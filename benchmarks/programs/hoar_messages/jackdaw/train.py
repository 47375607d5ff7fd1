import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from wire import recv_count, recv_tensor, send_count, send_tensor


class PipelineWorker:
    """Only the first stage knows the data; everybody else learns how much is coming."""

    def __init__(self, module, rank, world, micro):
        self.module, self.rank, self.world, self.micro = module, rank, world, micro
        self.first, self.last = rank == 0, rank == world - 1

    def _micro_batches(self, batch):
        if self.first:
            x, y = batch
            parts = list(zip(x.split(self.micro), y.split(self.micro)))
            send_count(len(parts), 1)
            yield from parts
        else:
            n = recv_count(self.rank - 1)
            if not self.last:
                send_count(n, self.rank + 1)
            for _ in range(n):
                yield recv_tensor(self.rank - 1), recv_tensor(self.rank - 1)

    def run(self, batch=None, train=True):
        stash, correct = [], 0
        for x, y in self._micro_batches(batch):
            if train and not self.first:
                x.requires_grad_()
            out = self.module(x)
            if self.last:
                correct += int((out.argmax(-1) == y).sum())
                out = F.cross_entropy(out, y, reduction="sum")
            else:
                send_tensor(out, self.rank + 1)
                send_tensor(y, self.rank + 1)
            stash.append((x, out))
        if train:
            for x, out in reversed(stash):
                out.backward() if self.last else out.backward(recv_tensor(self.rank + 1))
                if not self.first:
                    send_tensor(x.grad, self.rank - 1)
        return correct

    def epochs(self, loader):
        """Yields one batch per step; the later stages get placeholders."""
        if self.first:
            send_count(len(loader), 1)
            yield from loader
        else:
            n = recv_count(self.rank - 1)
            if not self.last:
                send_count(n, self.rank + 1)
            for _ in range(n):
                yield None


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, (x[:, :3].sum(1) > 0).long())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--micro", type=int, default=8)
    ap.add_argument("--limit-eval", type=int, default=3, help="first stage only")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"stage{rank}: %(message)s")
    torch.manual_seed(rank)
    dims = [12] + [32] * (world - 1) + [2]
    layers = [nn.Linear(dims[rank], dims[rank + 1])] + ([nn.ReLU()] if rank < world - 1 else [])
    module = nn.Sequential(*layers)
    opt = torch.optim.SGD(module.parameters(), lr=2e-3)
    worker = PipelineWorker(module, rank, world, args.micro)

    train = DataLoader(make_data(203, 0), batch_size=40, shuffle=True) if rank == 0 else None
    heldout = list(DataLoader(make_data(91, 1), batch_size=25))[:args.limit_eval] if rank == 0 else None
    for epoch in range(args.epochs):
        for batch in worker.epochs(train):
            opt.zero_grad()
            worker.run(batch)
            opt.step()
        hits = 0
        with torch.no_grad():
            for batch in worker.epochs(heldout):
                hits += worker.run(batch, train=False)
        if worker.last:
            logging.info("epoch %d: %d hits", epoch, hits)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
