"""Classifier over parts of different length; steps are weighted by the samples they contain."""
import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from feed import PartFeed, write_parts


class Reducer:
    """Sums gradients over processes, one asynchronous call per parameter."""

    def __init__(self, module):
        self.handles = []
        for p in module.parameters():
            dist.broadcast(p.data, src=0)
            p.register_post_accumulate_grad_hook(self._launch)

    def _launch(self, p):
        self.handles.append(dist.all_reduce(p.grad, async_op=True))

    def wait(self):
        for h in self.handles:
            h.wait()
        self.handles.clear()


class Roster:
    """Progress notes in the key-value store, one key per process and epoch."""

    def __init__(self, rank, world):
        self.store = dist.PrefixStore("roster", dist.distributed_c10d._get_default_store())
        self.rank, self.world = rank, world

    def post(self, epoch, batches, samples):
        self.store.set(f"{epoch}/{self.rank}", f"{batches} {samples}")

    def read(self, epoch):
        keys = [f"{epoch}/{r}" for r in range(self.world)]
        self.store.wait(keys)
        return [tuple(int(v) for v in self.store.get(k).decode().split()) for k in keys]


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--seed", type=int, default=12)
    return p.parse_args()


def rounds(feed, epoch):
    """Batches of this process, followed by empty ones until every process has finished."""
    source = feed.epoch(epoch)
    empty = (torch.zeros(0, 20), torch.zeros(0, dtype=torch.long))
    while True:
        batch = next(source, None)
        size = torch.tensor([0 if batch is None else len(batch[1])])
        dist.all_reduce(size)
        if size.item() == 0:
            return
        yield (empty if batch is None else batch), size.item()


def train_epoch(model, reducer, opt, feed, epoch):
    model.train()
    total, used, batches = torch.zeros(1), 0, 0
    for (x, y), everywhere in rounds(feed, epoch):
        opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y, reduction="sum") / everywhere
        loss.backward()
        reducer.wait()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        opt.step()
        total += loss.detach() * everywhere
        used += len(y)
        batches += len(y) > 0
    dist.all_reduce(total)
    return total.item(), batches, used


@torch.no_grad()
def evaluate(model, feed):
    model.eval()
    hits = torch.zeros(2)
    for x, y in feed.epoch(0):
        hits += torch.tensor([(model(x).argmax(-1) == y).sum().item(), len(y)])
    dist.all_reduce(hits)
    return (hits[0] / hits[1]).item(), int(hits[1])


def main():
    a = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    box = [tempfile.mkdtemp(prefix="parts_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    root = Path(box[0])
    if rank == 0:
        for name, sizes, seed in (("train", [90, 40, 130, 75, 60], 1), ("test", [64, 30, 70], 2)):
            (root / name).mkdir()
            write_parts(root / name, sizes, seed)
    dist.barrier()
    torch.manual_seed(a.seed)
    model = nn.Sequential(nn.Linear(20, 48), nn.LayerNorm(48), nn.ReLU(), nn.Linear(48, 5))
    reducer = Reducer(model)
    opt = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.StepLR(opt, 2, 0.3)
    train = PartFeed(root / "train", a.batch, rank, world, a.seed)
    test = PartFeed(root / "test", 32, rank, world, a.seed)
    roster = Roster(rank, world)
    for epoch in range(a.epochs):
        total, batches, used = train_epoch(model, reducer, opt, train, epoch)
        sched.step()
        roster.post(epoch, batches, used)
        notes = roster.read(epoch)
        samples = sum(n for _, n in notes)
        acc, n = evaluate(model, test)
        if rank == 0:
            print(f"epoch {epoch} loss {total / samples:.4f} accuracy {acc:.4f} of {n}, "
                  f"batches {[b for b, _ in notes]} samples {samples}", flush=True)
    if rank == 0:
        torch.save(model.state_dict(), root / "model.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
