"""Ranks with roles: rank 0 reads and hands out batches, the middle ranks train, the last one evaluates."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Forecaster(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0]).squeeze(-1)


def waves(n, length, g):
    f = 0.1 + 0.4 * torch.rand(n, 1, generator=g)
    phase = 6.28 * torch.rand(n, 1, generator=g)
    t = torch.arange(length + 1).float()
    return torch.sin(f * t + phase) + 0.05 * torch.randn(n, length + 1, generator=g)


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def unflat(vec, tensors):
    offset = 0
    for t in tensors:
        t.copy_(vec[offset:offset + t.numel()].view_as(t))
        offset += t.numel()


class Reader:
    """Stands for a slow shared store that only one process may open."""

    def __init__(self, args, trainers):
        self.args, self.trainers = args, trainers
        self.g = torch.Generator().manual_seed(10)

    def run(self):
        for _ in range(self.args.steps):
            time.sleep(self.args.read_seconds)
            block = waves(self.args.batch * len(self.trainers), self.args.length, self.g)
            for part, peer in zip(block.chunk(len(self.trainers)), self.trainers):
                dist.send(part.contiguous(), peer)


def trainer(args, group, members, evaluator):
    model = Forecaster()
    params = [p for p in model.parameters()]
    dist.broadcast(first := flat([p.data for p in params]), src=members[0], group=group)
    with torch.no_grad():
        unflat(first, params)
    opt = torch.optim.Adam(params, lr=5e-3)
    for step in range(1, args.steps + 1):
        batch = torch.empty(args.batch, args.length + 1)
        dist.recv(batch, 0)
        loss = F.mse_loss(model(batch[:, :-1, None]), batch[:, 1:])
        opt.zero_grad()
        loss.backward()
        grads = flat([p.grad for p in params])
        dist.all_reduce(grads, group=group)
        unflat(grads / len(members), [p.grad for p in params])
        opt.step()
        if step % args.eval_every == 0 and dist.get_rank() == members[0]:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            dist.send(flat([p.detach() for p in params]), evaluator)


def evaluate(args, source):
    model = Forecaster().eval()
    params = [p for p in model.parameters()]
    data = waves(256, args.length, torch.Generator().manual_seed(77))
    best = float("inf")
    for step in range(args.eval_every, args.steps + 1, args.eval_every):
        weights = flat([p.detach() for p in params])
        dist.recv(weights, source)
        with torch.no_grad():
            unflat(weights, params)
            err = F.mse_loss(model(data[:, :-1, None]), data[:, 1:]).item()
        best = min(best, err)
        print(f"step {step} held-out {err:.4f} best {best:.4f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--length", type=int, default=24)
    ap.add_argument("--eval-every", type=int, default=20)
    ap.add_argument("--read-seconds", type=float, default=0.04)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    members = list(range(1, world - 1))
    group = dist.new_group(members)
    torch.manual_seed(rank)
    if rank == 0:
        Reader(args, members).run()
    elif rank in members:
        trainer(args, group, members, world - 1)
    else:
        evaluate(args, members[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
