import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class BaseTrainer:
    """Owns the loop; subclasses supply model, data and loss."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.model = None
        self.optimizer = None
        self.scheduler = None
        self.start_epoch = 0
        self.step = 0

    def build_model(self):
        raise NotImplementedError

    def build_datasets(self):
        raise NotImplementedError

    def compute_loss(self, batch):
        raise NotImplementedError

    @property
    def ckpt_path(self):
        return os.path.join(self.cfg.work_dir, "last.pt")

    def say(self, text):
        if self.rank == 0:
            print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)

    def setup(self):
        torch.manual_seed(self.cfg.seed)
        if self.model is None:
            self.model = self.build_model()
        self.ddp = DDP(self.model)
        self.train_set, self.val_set = self.build_datasets()
        self.sampler = DistributedSampler(self.train_set, shuffle=True, seed=self.cfg.seed, drop_last=True)
        self.loader = DataLoader(self.train_set, self.cfg.batch, sampler=self.sampler, drop_last=True)
        self.val_loader = DataLoader(self.val_set, self.cfg.batch,
                                     sampler=DistributedSampler(self.val_set, shuffle=False))
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=self.cfg.lr, momentum=0.95, nesterov=True,
                                         weight_decay=1e-4)
        decay = self.cfg.schedule_epochs * len(self.loader)
        self.step = done = self.start_epoch * len(self.loader)
        self.scheduler = LambdaLR(self.optimizer, lambda s: max(0.05, (1 - (done + s) / decay) ** 0.9))

    def resume(self, path):
        state = torch.load(path, map_location="cpu")
        torch.manual_seed(self.cfg.seed)
        self.model = self.build_model()
        self.model.load_state_dict(state["model"])
        self.start_epoch = state["epoch"] + 1
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.say(f"resumed {path} at epoch {self.start_epoch}")

    def save(self, epoch):
        if self.rank == 0:
            os.makedirs(self.cfg.work_dir, exist_ok=True)
            tmp = self.ckpt_path + ".tmp"
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": epoch}, tmp)
            os.replace(tmp, self.ckpt_path)
        dist.barrier()

    @torch.no_grad()
    def validate(self):
        self.ddp.eval()
        acc = torch.zeros(2)
        for batch in self.val_loader:
            n = len(batch[0])
            acc += torch.tensor([self.compute_loss(batch).item() * n, n])
        dist.all_reduce(acc)
        self.ddp.train()
        return (acc[0] / acc[1]).item()

    def train(self):
        self.setup()
        for epoch in range(self.start_epoch, self.cfg.epochs):
            self.sampler.set_epoch(epoch)
            running = 0.0
            for batch in self.loader:
                loss = self.compute_loss(batch)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.step += 1
                running += loss.item()
            self.say(f"epoch {epoch} step {self.step} loss {running / len(self.loader):.4f} "
                     f"val {self.validate():.4f} lr {self.scheduler.get_last_lr()[0]:.4f}")
            self.save(epoch)
