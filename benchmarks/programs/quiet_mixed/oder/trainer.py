import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from optim import build_optimizer, lr_at
from task import SeriesTask, Forecaster


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        self.task = SeriesTask(args.seed)
        self.model = Forecaster(self.task.context)
        self.optimizer = build_optimizer(self.model, args.lr)
        self.step = 0

    def prepare(self):
        self.model = DDP(self.model)
        self.optimizer = build_optimizer(self.model, self.args.lr)

    def fit(self, last):
        self.prepare()
        while self.step < last:
            x, y = self.task.batch(self.step, self.rank, self.world, self.args.batch)
            for group in self.optimizer.param_groups:
                group["lr"] = lr_at(self.step, self.args)
            loss = F.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 5 == 0:
                dist.all_reduce(loss.data)
                if self.rank == 0:
                    print(f"step {self.step} loss {loss.item() / self.world:.6f}", flush=True)

    def save(self, path):
        if self.rank == 0:
            torch.save({
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
            }, path)

    def load(self, path):
        state = torch.load(path, map_location="cpu")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
