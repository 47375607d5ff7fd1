import contextlib
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F


class Engine:
    def __init__(self, model, optimizer, scheduler, accumulate, clip):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.accumulate, self.clip = accumulate, clip
        self.micro = 0

    def _sync_context(self):
        boundary = (self.micro + 1) % self.accumulate == 0
        return contextlib.nullcontext() if boundary else self.model.no_sync()

    def forward(self, batch):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def backward(self, loss):
        (loss / self.accumulate).backward()

    def micro_step(self, batch):
        with self._sync_context():
            loss = self.forward(batch)
            self.backward(loss)
        self.micro += 1
        if self.micro % self.accumulate == 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def run_epoch(self, loader):
        self.model.train()
        start, total, n = time.perf_counter(), torch.zeros(()), 0
        for batch in loader:
            total += self.micro_step(batch)
            n += 1
        mean = total / n
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size(), time.perf_counter() - start

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        hits = torch.zeros(2)
        for x, y in loader:
            hits += torch.tensor([(self.model(x).argmax(1) == y).sum().item(), len(y)])
        dist.all_reduce(hits)
        return (hits[0] / hits[1]).item()
