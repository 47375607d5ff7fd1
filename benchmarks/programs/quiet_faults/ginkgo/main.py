import copy
import os
import shutil
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from sampling import BalancedDraw


@dataclass
class Plan:
    epochs: int = 6
    stop_first_job_at: int = 3
    batch: int = 32
    draws: int = 1024
    lr: float = 3e-3
    decay: float = 0.97
    seed: int = 19


def rare_classes(n, seed):
    """Class frequencies fall by a factor of two from one class to the next."""
    g = torch.Generator().manual_seed(seed)
    p = 0.5 ** torch.arange(6).float()
    y = torch.multinomial(p, n, replacement=True, generator=g)
    centre = torch.randn(6, 20, generator=torch.Generator().manual_seed(70)) * 0.9
    return TensorDataset(centre[y] + torch.randn(n, 20, generator=g), y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 96), nn.GELU(), nn.Dropout(0.15), nn.Linear(96, 96), nn.GELU())
        self.head = nn.Linear(96, 6)

    def forward(self, x):
        return self.head(self.body(x))


class Job:
    def __init__(self, plan, folder):
        self.plan, self.folder = plan, folder
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(plan.seed)
        self.net = Net()
        self.model = DDP(self.net)
        self.average = copy.deepcopy(self.net).eval().requires_grad_(False)
        torch.manual_seed(plan.seed + 100 * (self.rank + 1))
        self.train, self.val = rare_classes(1200, 1), rare_classes(400, 2)
        y = self.train.tensors[1]
        weights = (1.0 / torch.bincount(y, minlength=6).float().clamp(min=1))[y]
        self.sampler = BalancedDraw(weights, plan.draws, self.rank, self.world, plan.seed)
        self.loader = DataLoader(self.train, batch_size=plan.batch, sampler=self.sampler)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=plan.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, plan.epochs * len(self.loader))
        self.epoch, self.best = 0, 0.0
        self.resume()

    def checkpoint_path(self):
        return os.path.join(self.folder, "state.pt")

    def resume(self):
        if not os.path.exists(self.checkpoint_path()):
            return
        s = torch.load(self.checkpoint_path(), weights_only=True)
        self.net.load_state_dict(s["net"])
        self.average.load_state_dict(s["average"])
        self.opt.load_state_dict(s["opt"])
        self.sched.load_state_dict(s["sched"])
        self.epoch, self.best = s["epoch"], s["best"]
        torch.set_rng_state(s["rng"][self.rank])

    def save(self):
        rng = [None] * self.world
        dist.all_gather_object(rng, torch.get_rng_state())
        if self.rank == 0:
            torch.save(
                {"net": self.net.state_dict(), "average": self.average.state_dict(), "opt": self.opt.state_dict(),
                 "sched": self.sched.state_dict(), "epoch": self.epoch, "best": self.best, "rng": rng},
                self.checkpoint_path(),
            )
        dist.barrier()

    @torch.no_grad()
    def follow(self):
        if self.rank == 0:
            for a, p in zip(self.average.parameters(), self.net.parameters()):
                a.lerp_(p, 1 - self.plan.decay)

    @torch.no_grad()
    def share_average(self):
        for a in self.average.parameters():
            dist.broadcast(a, src=0)

    @torch.no_grad()
    def balanced_accuracy(self):
        x, y = (t[self.rank::self.world] for t in self.val.tensors)
        hit = (self.average(x).argmax(1) == y).float()
        stats = torch.stack([torch.bincount(y, weights=hit, minlength=6), torch.bincount(y, minlength=6).float()])
        dist.all_reduce(stats)
        return (stats[0] / stats[1].clamp(min=1)).mean().item()

    def run(self, until):
        while self.epoch < until:
            self.sampler.set_epoch(self.epoch)
            self.model.train()
            total = torch.zeros(2)
            for x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                self.opt.step()
                self.sched.step()
                self.follow()
                total += torch.tensor([loss.item(), 1.0])
            self.share_average()
            dist.all_reduce(total)
            score = self.balanced_accuracy()
            self.best = max(self.best, score)
            self.epoch += 1
            self.save()
            if self.rank == 0:
                print(f"epoch {self.epoch} loss {total[0] / total[1]:.4f} balanced acc {score:.3f} best {self.best:.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    plan = Plan()
    box = [tempfile.mkdtemp(prefix="rare_") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    Job(plan, box[0]).run(plan.stop_first_job_at)
    Job(plan, box[0]).run(plan.epochs)
    if dist.get_rank() == 0:
        shutil.rmtree(box[0], ignore_errors=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
