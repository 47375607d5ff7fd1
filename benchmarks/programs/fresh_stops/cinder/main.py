"""Training in the main thread, and a second thread that keeps the averaged weights of all processes comparable:
it hands a moving average round over a group of its own."""
import argparse
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn


class Averager:
    def __init__(self, size, group, decay=0.9):
        self.group, self.decay = group, decay
        self.value = None
        self.inbox = queue.Queue(maxsize=4)
        self.thread = threading.Thread(target=self.loop, name="averager")
        self.thread.start()

    def loop(self):
        while True:
            vec = self.inbox.get()
            if vec is None:
                return
            dist.all_reduce(vec, group=self.group)
            vec /= dist.get_world_size()
            self.value = vec if self.value is None else self.decay * self.value + (1 - self.decay) * vec

    def push(self, vec):
        self.inbox.put(vec)

    def close(self):
        self.inbox.put(None)
        self.thread.join()
        return self.value


class Waves:
    def __init__(self, seed, rank):
        self.g = torch.Generator().manual_seed(seed * 101 + rank)

    def __call__(self, n, points=24):
        phase = 6.28 * torch.rand(n, 1, generator=self.g)
        speed = 0.2 + 0.6 * torch.rand(n, 1, generator=self.g)
        t = torch.arange(points + 1)
        w = torch.sin(phase + speed * t) + 0.02 * torch.randn(n, points + 1, generator=self.g)
        return w[:, :-1], w[:, -1:]


def vector(ps):
    return torch.cat([p.detach().reshape(-1) for p in ps]).clone()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=200)
    ap.add_argument("--every", type=int, default=3)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=27)
    ap.add_argument("--out", default="/tmp/waves.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    side = dist.new_group()
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 1))
    params = list(net.parameters())
    optim = torch.optim.Adam(params, lr=args.lr)
    averager = Averager(sum(p.numel() for p in params), side)
    draw = Waves(args.seed, rank)
    for step in range(1, args.steps + 1):
        x, y = draw(32)
        loss = nn.functional.mse_loss(net(x), y)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= world
        optim.step()
        if step % args.every == 0:
            averager.push(vector(params))
        if step % 50 == 0:
            seen = loss.detach().clone()
            dist.all_reduce(seen)
            if rank == 0:
                print(f"step {step} loss {seen.item() / world:.4f}", flush=True)
    mean = averager.close()
    dist.barrier()
    if rank == 0:
        torch.save({"net": net.state_dict(), "average": mean}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
