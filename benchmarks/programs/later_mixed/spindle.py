"""Two trainers and one evaluator: the evaluator works on received weights while training goes on."""
import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STOP = -1


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))


def sample(gen, size):
    x = torch.rand(size, 10, generator=gen) * 2 - 1
    return x, (x[:, :1] * x[:, 1:2] * 3).sin()


class Publisher:
    """Trainer 0 hands copies of the weights to the evaluator without waiting for it."""

    def __init__(self, dst):
        self.dst, self.pending = dst, []

    def publish(self, model, step):
        vec = parameters_to_vector(model.parameters()).detach().clone()
        head = torch.tensor([step])
        self.pending = [(w, t) for w, t in self.pending if not w.is_completed()]
        for t, tag in ((head, 1), (vec, 2)):
            self.pending.append((dist.isend(t, self.dst, tag=tag), t))

    def close(self):
        dist.send(torch.tensor([STOP]), self.dst, tag=1)
        for work, _ in self.pending:
            work.wait()


def evaluator(args):
    model = build()
    size = sum(p.numel() for p in model.parameters())
    results = []
    while True:
        head, vec = torch.empty(1, dtype=torch.long), torch.empty(size)
        dist.recv(head, src=0, tag=1)
        if int(head) == STOP:
            break
        dist.recv(vec, src=0, tag=2)
        vector_to_parameters(vec, model.parameters())
        gen = torch.Generator().manual_seed(1)
        with torch.no_grad():
            x, y = sample(gen, 2048)
            err = F.mse_loss(model(x), y).item()
            time.sleep(args.eval_seconds)
        results.append((int(head), round(err, 4)))
    print("evaluations:", results, flush=True)


def trainer(args, rank, group):
    ddp = DDP(build(), process_group=group)
    opt = torch.optim.Adam(ddp.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(40 + rank)
    out = Publisher(dst=2) if rank == 0 else None
    for step in range(1, args.steps + 1):
        x, y = sample(gen, 64)
        loss = F.mse_loss(ddp(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if out is not None and step % args.every == 0:
            out.publish(ddp.module, step)
    if out is not None:
        print(f"trained {args.steps} steps, loss {loss.item():.4f}", flush=True)
        out.close()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=150)
    ap.add_argument("--every", type=int, default=30)
    ap.add_argument("--eval-seconds", type=float, default=0.8)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    group = dist.new_group([0, 1])
    if rank == 2:
        evaluator(args)
    else:
        trainer(args, rank, group)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
