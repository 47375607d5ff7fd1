"""Multi-task regression / classification; `--resume` goes on from a checkpoint written by rank 0."""
import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("multitask")


@dataclass
class Config:
    epochs: int = 5
    batch_size: int = 16
    lr: float = 5e-3
    aux_weight: float = 0.5
    seed: int = 21
    workdir: str = ""
    resume: str = ""
    stop_after: int = 0


class MultiTask(nn.Module):
    def __init__(self, d=16, width=32, classes=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, width), nn.LayerNorm(width), nn.GELU(),
                                   nn.Linear(width, width), nn.GELU())
        self.cls_head = nn.Linear(width, classes)
        self.reg_head = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls_head(h), self.reg_head(h).squeeze(-1)


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    w = torch.Generator().manual_seed(0)
    x = torch.randn(n, 16, generator=g)
    y = (x @ torch.randn(16, 4, generator=w)).argmax(1)
    t = torch.tanh(x @ torch.randn(16, generator=w)) + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(x, y, t)


class Checkpointer:
    def __init__(self, folder, **parts):
        self.folder, self.parts = Path(folder), parts

    def save(self, name, **extra):
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {k: v.state_dict() for k, v in self.parts.items()}
        tmp = self.folder / (name + ".tmp")
        torch.save({**state, **extra}, tmp)
        tmp.rename(self.folder / name)

    def load(self, path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        for k, part in self.parts.items():
            part.load_state_dict(state[k])
        return state


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed)
        train, self.val = make_data(320, 1), make_data(96, 2)
        self.sampler = DistributedSampler(train, seed=cfg.seed)
        self.loader = DataLoader(train, cfg.batch_size, sampler=self.sampler)
        net = MultiTask()
        self.opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, cfg.epochs * len(self.loader))
        self.ckpt = Checkpointer(cfg.workdir, model=net, optimizer=self.opt, scheduler=self.sched)
        self.start_epoch = 0
        if cfg.resume:
            self.restore(net)
        self.model = DDP(net)

    def restore(self, net):
        start = torch.zeros(1, dtype=torch.long)
        if self.rank == 0:
            start += self.ckpt.load(self.cfg.resume)["epoch"] + 1
            log.info("resumed %s at epoch %d", self.cfg.resume, start.item())
        dist.broadcast(start, 0)
        self.start_epoch = int(start)
        for p in net.parameters():
            dist.broadcast(p.data, 0)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()
        total = torch.zeros(2)
        for x, y, t in self.loader:
            logits, value = self.model(x)
            cls, reg = F.cross_entropy(logits, y), F.mse_loss(value, t)
            self.opt.zero_grad()
            (cls + self.cfg.aux_weight * reg).backward()
            self.opt.step()
            self.sched.step()
            total += torch.tensor([cls.item(), reg.item()])
        dist.all_reduce(total)
        return (total / len(self.loader) / self.world).tolist()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        x, y, t = (v[self.rank::self.world] for v in self.val.tensors)
        logits, value = self.model.module(x)
        sums = torch.tensor([(logits.argmax(1) == y).sum(), (value - t).pow(2).sum(), float(len(x))])
        dist.all_reduce(sums)
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()

    def fit(self):
        for epoch in range(self.start_epoch, self.cfg.epochs):
            cls, reg = self.train_epoch(epoch)
            acc, mse = self.validate()
            if self.rank == 0:
                log.info("epoch %d cls %.4f reg %.4f | val acc %.3f mse %.4f", epoch, cls, reg, acc, mse)
                self.ckpt.save("last.pt", epoch=epoch)
            if self.cfg.stop_after and epoch + 1 >= self.cfg.stop_after:
                break


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=Config.epochs)
    p.add_argument("--resume", default="")
    p.add_argument("--stop-after", type=int, default=Config.stop_after, help="end the job after this many epochs")
    p.add_argument("--workdir", default=str(Path("runs") / Path(__file__).parent.name))
    a = p.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    Trainer(Config(epochs=a.epochs, resume=a.resume, workdir=a.workdir, stop_after=a.stop_after)).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
