import argparse
import os
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Progress:
    def __init__(self, path):
        self.path = path
        self.epoch = 0
        self.offset = 0

    def pack(self, epoch, offset, model, opt):
        return {"epoch": epoch, "offset": offset, "model": model.module.state_dict(), "opt": opt.state_dict()}

    def store(self, *parts):
        if dist.get_rank() == 0:
            torch.save(self.pack(*parts), self.path + ".new")
            os.replace(self.path + ".new", self.path)
        dist.barrier()

    def restore(self, model, opt):
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        model.module.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        self.epoch, self.offset = state["epoch"], state["offset"]


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, 10))


def train(args):
    rank = dist.get_rank()
    g = torch.Generator().manual_seed(13)
    data = TensorDataset(torch.rand(2560, 3, 16, 16, generator=g), torch.randint(0, 10, (2560,), generator=g))
    sampler = DistributedSampler(data, shuffle=True, seed=3, drop_last=True)
    loader = DataLoader(data, batch_size=64, sampler=sampler, drop_last=True)
    model = DDP(network())
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    progress = Progress("lantern_progress.pt")
    if args.resume:
        progress.restore(model, opt)
    for epoch in range(progress.epoch, args.epochs):
        sampler.set_epoch(epoch)
        seen = torch.zeros(())
        for i, (x, y) in enumerate(islice(loader, progress.offset, None), start=progress.offset):
            opt.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            seen += 1
            if (epoch, i) == (args.stop_epoch, args.stop_batch):
                progress.store(epoch, i + 1, model, opt)
                return
        if rank == 0:
            print("epoch", epoch, "batches", int(seen), flush=True)
    progress.store(args.epochs, 0, model, opt)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--stop_epoch", type=int, default=-1)
    p.add_argument("--stop_batch", type=int, default=-1)
    p.add_argument("--resume", action="store_true")
    args = p.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
