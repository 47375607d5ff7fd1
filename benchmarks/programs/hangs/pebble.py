"""Checkpoints are written in the background over a group of their own."""
import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Saver:
    """At most one checkpoint under way; the next one waits for it."""

    def __init__(self, folder, keep):
        self.folder, self.keep = Path(folder), keep
        self.group = dist.new_group(backend="gloo", group_desc="checkpoint")
        self.future, self.names = None, []

    def save(self, model, step):
        self.wait()
        state = {"model": model.module.state_dict(), "step": step}
        name = self.folder / f"step{step:04d}"
        self.future = dcp.async_save(state, checkpoint_id=name, process_group=self.group)
        self.names.append(name)

    def wait(self):
        if self.future is not None:
            self.future.result()
            self.future = None
            self.prune()

    def prune(self):
        if dist.get_rank() == 0:
            for name in self.names[: -self.keep]:
                shutil.rmtree(name, ignore_errors=True)


def restore(model, name):
    state = {"model": model.module.state_dict(), "step": 0}
    dcp.load(state, checkpoint_id=name)
    model.module.load_state_dict(state["model"])
    return state["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=15)
    parser.add_argument("--out", default="pebble_ckpt")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    saver = Saver(args.out, keep=2)
    for step in range(1, args.steps + 1):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * 2 + rank))
        opt.zero_grad()
        loss = (model(x) - x.cos()).square().mean()
        loss.backward()
        opt.step()
        dist.all_reduce(loss.detach())
        if step % args.every == 0:
            saver.save(model, step)
    saver.wait()
    dist.barrier()
    step = restore(model, saver.names[-1])
    if rank == 0:
        print(f"restored step {step}, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
