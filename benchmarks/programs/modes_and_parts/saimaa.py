import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Shapes(Dataset):
    """Small noisy grey pictures: one bright patch per class position."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 9, (n,), generator=g)
        self.x = torch.randn(n, 1, 12, 12, generator=g)
        for i, c in enumerate(self.y.tolist()):
            r, k = divmod(c, 3)
            self.x[i, 0, 4 * r:4 * r + 4, 4 * k:4 * k + 4] += 0.9

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def build_net():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(32 * 9, 9),
    )


class Hook:
    def on_fit_start(self, trainer): pass
    def on_step_end(self, trainer, loss): pass
    def on_epoch_end(self, trainer): pass


class Throughput(Hook):
    def on_fit_start(self, trainer):
        self.t0, self.n = time.time(), 0

    def on_step_end(self, trainer, loss):
        self.n += trainer.loader.batch_size * trainer.world

    def on_epoch_end(self, trainer):
        trainer.say(f"epoch {trainer.epoch}: {self.n} images so far, lr {trainer.opt.param_groups[0]['lr']:.4f}")


class ConfidenceTrace(Hook):
    """Follows the confidence on a handful of fixed pictures over the run."""

    def __init__(self, pictures, every):
        self.pictures, self.every, self.trace = pictures, every, []

    @torch.no_grad()
    def on_step_end(self, trainer, loss):
        if trainer.step % self.every:
            return
        net = trainer.model.module.eval()
        p = net(self.pictures).softmax(-1)
        self.trace.append(p.max(-1).values.mean().item())
        trainer.say(f"step {trainer.step} loss {loss:.4f} confidence {self.trace[-1]:.3f}")


class Trainer:
    def __init__(self, model, loader, sampler, opt, hooks):
        self.model, self.loader, self.sampler, self.opt, self.hooks = model, loader, sampler, opt, hooks
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.step = self.epoch = 0
        self.loss_fn = nn.CrossEntropyLoss(label_smoothing=0.05)

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def call(self, name, *args):
        for h in self.hooks:
            getattr(h, name)(self, *args)

    def fit(self, epochs):
        self.model.train()
        self.call("on_fit_start")
        for self.epoch in range(epochs):
            self.sampler.set_epoch(self.epoch)
            for x, y in self.loader:
                self.opt.zero_grad()
                loss = self.loss_fn(self.model(x), y)
                loss.backward()
                self.opt.step()
                self.step += 1
                self.call("on_step_end", loss.item())
            self.call("on_epoch_end")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--trace-every", type=int, default=10)
    a = ap.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    net = DistributedDataParallel(build_net())
    torch.manual_seed(100 + dist.get_rank())
    data = Shapes(1536, seed=1)
    sampler = DistributedSampler(data, seed=3, drop_last=True)
    loader = DataLoader(data, a.batch, sampler=sampler, drop_last=True)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    probe = torch.stack([Shapes(16, seed=2)[i][0] for i in range(16)])
    Trainer(net, loader, sampler, opt, [Throughput(), ConfidenceTrace(probe, a.trace_every)]).fit(a.epochs)
    if dist.get_rank() == 0:
        os.makedirs("out_saimaa", exist_ok=True)
        torch.save(net.module.state_dict(), "out_saimaa/net.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
