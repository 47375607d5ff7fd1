"""Low-communication training: inner AdamW steps, outer Nesterov on pseudo-gradients."""
import argparse
import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def build_model():
    return nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 5))


def build_data(seed, rank, world):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1536, 20, generator=g)
    w = torch.randn(20, 5, generator=g)
    ds = TensorDataset(x, (x @ w).argmax(1))
    return Subset(ds, list(range(rank, len(ds), world)))


class OuterLoop:
    def __init__(self, model, lr, momentum):
        self.model = model
        self.anchor = [p.detach().clone() for p in model.parameters()]
        for a in self.anchor:
            dist.broadcast(a, 0)
        self._pull()
        self.params = [nn.Parameter(a.clone()) for a in self.anchor]
        self.opt = torch.optim.SGD(self.params, lr=lr, momentum=momentum, nesterov=True)

    def _pull(self):
        with torch.no_grad():
            for p, a in zip(self.model.parameters(), self.anchor):
                p.copy_(a)

    def sync(self):
        world = dist.get_world_size()
        works = []
        for q, p in zip(self.params, self.model.parameters()):
            q.grad = q.detach() - p.detach()
            works.append(dist.all_reduce(q.grad, async_op=True))
        for w in works:
            w.wait()
        for q in self.params:
            q.grad /= world
        self.opt.step()
        for a, q in zip(self.anchor, self.params):
            a.copy_(q.detach())
        self._pull()


def forever(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--inner", type=int, default=6)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    model = build_model()
    torch.manual_seed(100 + rank)
    outer = OuterLoop(model, lr=0.7, momentum=0.9)
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = forever(DataLoader(build_data(3, rank, world), batch_size=32, shuffle=True, drop_last=True))
    for r in range(args.rounds):
        for _ in range(args.inner):
            x, y = next(batches)
            loss = F.cross_entropy(model(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
        outer.sync()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"round {r} loss {total.item() / world:.4f}", flush=True)
    final = copy.deepcopy(model.state_dict())
    if rank == 0:
        print("params", sum(v.numel() for v in final.values()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
