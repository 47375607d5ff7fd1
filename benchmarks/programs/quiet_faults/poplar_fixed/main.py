import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from conf import compose


def patterns(rows, size, classes, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % classes
    base = torch.randn(classes, 1, size, size, generator=torch.Generator().manual_seed(0))
    shift = torch.randint(0, 4, (rows,), generator=g)
    x = torch.stack([torch.roll(base[c], int(s), dims=2) for c, s in zip(y, shift)])
    return TensorDataset(x + 1.2 * torch.randn(x.shape, generator=g), y)


def network(width, classes):
    def unit(i, o, stride):
        return nn.Sequential(nn.Conv2d(i, o, 3, stride=stride, padding=1), nn.GroupNorm(4, o), nn.SiLU())

    return nn.Sequential(
        unit(1, width, 1), unit(width, width, 2), unit(width, width * 2, 2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(width * 8, classes),
    )


OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


class Experiment:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        self.net = network(cfg.model.width, cfg.model.classes)
        self.model = DDP(self.net)
        d = cfg.data
        self.train_set = patterns(d.train_rows, d.size, cfg.model.classes, d.seed)
        self.val_set = patterns(d.val_rows, d.size, cfg.model.classes, d.seed + 1)
        self.sampler = DistributedSampler(self.train_set, seed=cfg.seed)
        self.train_loader = DataLoader(self.train_set, batch_size=cfg.loop.batch, sampler=self.sampler)
        self.val_loader = DataLoader(
            self.val_set, batch_size=cfg.loop.eval_batch, sampler=DistributedSampler(self.val_set, shuffle=False)
        )
        self.opt = OPTIMIZERS[cfg.optim.name](
            self.net.parameters(), lr=cfg.optim.lr, weight_decay=cfg.optim.weight_decay
        )
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.loop.epochs * len(self.train_loader))
        self.best = 0.0
        self.step = 0

    @torch.no_grad()
    def evaluate(self):
        self.net.eval()
        totals = torch.zeros(3)
        for x, y in self.val_loader:
            logits = self.net(x)
            totals[0] += F.cross_entropy(logits, y, reduction="sum")
            totals[1] += (logits.argmax(1) == y).sum()
            totals[2] += len(y)
        dist.all_reduce(totals)
        self.net.train()
        return (totals[0] / totals[2]).item(), (totals[1] / totals[2]).item()

    def keep(self, accuracy):
        if accuracy <= self.best:
            return
        self.best = accuracy
        if self.rank == 0:
            os.makedirs("runs", exist_ok=True)
            torch.save({"step": self.step, "net": self.net.state_dict(), "cfg": dict(self.cfg)}, "runs/patterns.pt")

    def run(self):
        began = time.time()
        for epoch in range(self.cfg.loop.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.train_loader:
                loss = F.cross_entropy(self.model(x), y)
                self.opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), self.cfg.loop.clip)
                self.opt.step()
                self.sched.step()
                self.step += 1
                if self.step % self.cfg.loop.eval_every == 0:
                    val_loss, acc = self.evaluate()
                    self.keep(acc)
                    if self.rank == 0:
                        print(f"epoch {epoch} step {self.step} val {val_loss:.4f} acc {acc:.3f} "
                              f"best {self.best:.3f} {time.time() - began:.1f}s", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Experiment(compose()).run()
    dist.barrier()
    dist.destroy_process_group()
