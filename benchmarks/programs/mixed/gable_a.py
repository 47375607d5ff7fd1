import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP


class Ranker(nn.Module):
    def __init__(self, items=40000, dim=192):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.query = nn.Sequential(nn.Linear(32, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x, pos, neg):
        q = self.query(x)
        score = (q * self.items(pos)).sum(-1) - (q * self.items(neg)).sum(-1)
        return -nn.functional.logsigmoid(score).mean()


def save(root, step, model, optimizer, group):
    weights, opt = get_state_dict(model, optimizer)
    target = os.path.join(root, f"step_{step}")
    future = dcp.async_save({"model": weights, "optim": opt}, checkpoint_id=target, process_group=group)
    return target, future


def mark_latest(root, target):
    if dist.get_rank() == 0:
        with open(os.path.join(root, "latest"), "w") as f:
            f.write(os.path.basename(target))
    dist.barrier()


def restore(root, model, optimizer):
    with open(os.path.join(root, "latest")) as f:
        source = os.path.join(root, f.read().strip())
    weights, opt = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": opt}
    dcp.load(state, checkpoint_id=source)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="gable_ckpt")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    saver_group = dist.new_group(backend="gloo")
    os.makedirs(args.out, exist_ok=True)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Ranker())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    for step in range(1, args.steps + 1):
        x = torch.randn(64, 32, generator=gen)
        pos, neg = torch.randint(0, 40000, (2, 64), generator=gen)
        loss = model(x, pos, neg)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            target, future = save(args.out, step, model, optimizer, saver_group)
            future.result()
            mark_latest(args.out, target)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)

    restore(args.out, model, optimizer)
    with torch.no_grad():
        final = model.module(torch.randn(64, 32), torch.arange(64), torch.arange(64, 128))
    if rank == 0:
        print(f"restored, loss {final.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
