import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BASE = Path.cwd() / "out_snapshots"


class Job:
    """Everything a later run needs: weights, moments, schedule and how many batches were used."""

    def __init__(self, model, optimizer, scheduler):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.step = 0

    def state_dict(self):
        weights, moments = get_state_dict(self.model, self.optimizer)
        return {"model": weights, "optim": moments, "sched": self.scheduler.state_dict(), "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.scheduler.load_state_dict(state["sched"])
        self.step = state["step"]


class Writer:
    def __init__(self, rank):
        self.rank = rank
        self.group = dist.new_group(backend="gloo")
        self.pending = None

    def submit(self, job):
        self.finish()
        name = f"step{job.step:05d}"
        self.pending = name, dcp.async_save({"job": job}, checkpoint_id=str(BASE / name), process_group=self.group)

    def finish(self):
        if self.pending is None:
            return
        name, future = self.pending
        future.result()
        dist.barrier()
        if self.rank == 0:
            (BASE / "latest").write_text(name)
        dist.barrier()
        self.pending = None


def make_data():
    g = torch.Generator().manual_seed(71)
    x = torch.randn(512, 18, generator=g)
    return TensorDataset(x, x[:, :3].sum(1, keepdim=True).sin())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=22)
    ap.add_argument("--every", type=int, default=11)
    ap.add_argument("--resume", action="store_true")
    args = ap.parse_args()
    dist.init_process_group("cpu:gloo")
    rank = dist.get_rank()
    if rank == 0:
        if not args.resume:
            shutil.rmtree(BASE, ignore_errors=True)
        BASE.mkdir(exist_ok=True)
    dist.barrier()
    torch.manual_seed(33)
    model = DDP(nn.Sequential(nn.Linear(18, 64), nn.GELU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=8, gamma=0.8)
    job = Job(model, optimizer, scheduler)
    if args.resume:
        dcp.load({"job": job}, checkpoint_id=str(BASE / (BASE / "latest").read_text()))
    data = make_data()
    sampler = DistributedSampler(data, shuffle=True, seed=19)
    loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
    writer = Writer(rank)
    last = job.step + args.steps
    while job.step < last:
        epoch, used = divmod(job.step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if i < used:
                continue
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            job.step += 1
            if job.step % args.every == 0:
                writer.submit(job)
            if job.step == last:
                break
        if rank == 0:
            print(f"step {job.step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}", flush=True)
    writer.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
