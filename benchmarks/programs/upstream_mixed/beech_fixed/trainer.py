import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, cfg, callbacks):
        self.cfg = cfg
        self.rank = dist.get_rank()
        self.is_global_zero = self.rank == 0
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        self.callbacks = callbacks
        self.should_stop = False
        self.step = 0
        self.last_loss = float("nan")

    def set_lr(self, lr):
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def fit(self, loader):
        criterion = nn.MSELoss()
        stream = iter(loader)
        while self.step < self.cfg.steps and not self.should_stop:
            x, y = next(stream)
            self.optimizer.zero_grad()
            loss = criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.last_loss = loss.item()
            self.step += 1
            for callback in self.callbacks:
                callback.on_batch_end(self)
        self.finish()

    def finish(self):
        if self.is_global_zero:
            buffer = io.BytesIO()
            torch.save(self.model.module.state_dict(), buffer)
            print(f"saved {buffer.tell()} bytes after {self.step} steps", flush=True)
        dist.barrier()
