"""Forecasting with fully_shard; the run is split in two legs with a sharded-state checkpoint."""
import argparse
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from model import Forecaster, series


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--leg", type=int, default=2, help="epochs per process lifetime")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=2)
    return p.parse_args()


class Leg:
    def __init__(self, a, mesh, data, valid):
        self.a = a
        torch.manual_seed(a.seed)
        self.model = Forecaster()
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=a.lr, weight_decay=0.01)
        self.sampler = DistributedSampler(data, shuffle=True, seed=a.seed, drop_last=True)
        self.loader = DataLoader(data, a.batch, sampler=self.sampler, drop_last=True)
        self.valid = DataLoader(valid, 32, sampler=DistributedSampler(valid, shuffle=False))
        total = a.epochs * len(self.loader)
        self.sched = torch.optim.lr_scheduler.LambdaLR(
            self.opt, lambda s: min(1.0, (s + 1) / 6) * (1 - 0.9 * s / total))
        self.epoch = 0

    def _bundle(self):
        model, optim = get_state_dict(self.model, self.opt)
        return {"model": model, "optim": optim,
                "extra": {"epoch": self.epoch, "sched": self.sched.state_dict()}}

    def save(self, path):
        dcp.save(self._bundle(), checkpoint_id=path)

    def load(self, path):
        state = self._bundle()
        dcp.load(state, checkpoint_id=path)
        set_state_dict(self.model, self.opt, model_state_dict=state["model"],
                       optim_state_dict=state["optim"])
        self.epoch = state["extra"]["epoch"]
        self.sched.load_state_dict(state["extra"]["sched"])

    def train_epoch(self):
        self.model.train()
        self.sampler.set_epoch(self.epoch)
        total = torch.zeros(2)
        for (rows,) in self.loader:
            x, y = rows[:, :48], rows[:, 48:]
            loss = F.huber_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.sched.step()
            total += torch.tensor([loss.item(), 1.0])
        self.epoch += 1
        dist.all_reduce(total)
        return (total[0] / total[1]).item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total = torch.zeros(2)
        for (rows,) in self.valid:
            err = (self.model(rows[:, :48]) - rows[:, 48:]).pow(2)
            total += torch.tensor([err.sum().item(), float(err.numel())])
        dist.all_reduce(total)
        return (total[0] / total[1]).sqrt().item()


def main():
    a = cli()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    box = [tempfile.mkdtemp(prefix="forecast_") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    data, valid = TensorDataset(series(512, 56, 1)), TensorDataset(series(128, 56, 2))

    finished = 0
    while finished < a.epochs:
        leg = Leg(a, mesh, data, valid)
        if finished:
            leg.load(box[0])
            if rank == 0:
                print(f"continue after epoch {leg.epoch}, lr {leg.sched.get_last_lr()[0]:.2e}",
                      flush=True)
        while leg.epoch < min(finished + a.leg, a.epochs):
            loss = leg.train_epoch()
            rmse = leg.evaluate()
            if rank == 0:
                print(f"epoch {leg.epoch} loss {loss:.4f} rmse {rmse:.4f}", flush=True)
        finished = leg.epoch
        leg.save(box[0])
        dist.barrier()
    norm = sum(p.full_tensor().pow(2).sum() for p in leg.model.parameters()).sqrt()
    if rank == 0:
        print(f"weight norm {norm:.4f}", flush=True)
        shutil.rmtree(box[0], ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
