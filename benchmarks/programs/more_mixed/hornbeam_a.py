"""Train a small regressor and write snapshots from a background thread."""
import argparse
import logging
import os
import queue
import tempfile
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

log = logging.getLogger("hornbeam")


class SnapshotWriter:
    """Serialises state in a worker thread; every rank writes its own part."""

    def __init__(self, root, group=None):
        self.root = root
        self.group = group
        self.jobs = queue.Queue()
        self.index = []
        self.thread = threading.Thread(target=self._loop, daemon=True)
        self.thread.start()

    def submit(self, step, state):
        self.jobs.put((step, {k: v.detach().clone() for k, v in state.items()}))

    def _loop(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            step, state = job
            path = os.path.join(self.root, f"s{step:05d}.r{dist.get_rank()}.pt")
            torch.save(state, path)
            sizes = [None] * dist.get_world_size()
            dist.all_gather_object(sizes, (path, os.path.getsize(path)), group=self.group)
            self.index.append((step, sizes))
            dist.barrier(group=self.group)

    def close(self):
        self.jobs.put(None)
        self.thread.join()


def make_loader(args):
    g = torch.Generator().manual_seed(args.seed)
    x = torch.randn(args.samples, 24, generator=g)
    y = (x[:, :6].sum(1, keepdim=True) * 0.4).tanh()
    ds = TensorDataset(x, y)
    sampler = DistributedSampler(ds, shuffle=True, seed=args.seed)
    return DataLoader(ds, batch_size=args.batch_size, sampler=sampler, drop_last=True), sampler


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=2048)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--save-every", type=int, default=2)
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = DDP(nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader, sampler = make_loader(args)
    with tempfile.TemporaryDirectory() as root:
        writer = SnapshotWriter(root)
        step = 0
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                step += 1
                if step % args.save_every == 0:
                    writer.submit(step, model.module.state_dict())
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                log.info("epoch %d loss %.4f", epoch, mean.item() / dist.get_world_size())
        writer.close()
        dist.barrier()
    if dist.get_rank() == 0:
        log.info("steps %d snapshots %d", step, len(writer.index))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
