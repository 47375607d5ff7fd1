import contextlib
import logging
import time

import torch
import torch.distributed as dist

log = logging.getLogger("trainer")


class Trainer:
    def __init__(self, model, optimizer, criterion, accumulate, clip=1.0):
        self.model = model
        self.optimizer = optimizer
        self.criterion = criterion
        self.accumulate = accumulate
        self.clip = clip
        self.updates = 0

    def _sync_context(self, last):
        return contextlib.nullcontext() if last else self.model.no_sync()

    def _micro_step(self, x, y, last):
        output = self.model(x)
        loss = self.criterion(output, y) / self.accumulate
        with self._sync_context(last):
            loss.backward()
        return loss.detach()

    def update(self, micro_batches):
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for i, (x, y) in enumerate(micro_batches):
            total += self._micro_step(x, y, last=i == self.accumulate - 1)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.updates += 1
        return total, norm

    def fit(self, batches, updates):
        start = time.perf_counter()
        for _ in range(updates):
            loss, norm = self.update([next(batches) for _ in range(self.accumulate)])
            if self.updates % 5 == 0:
                dist.all_reduce(loss)
                rate = 5 / (time.perf_counter() - start)
                log.info("update %d loss %.4f norm %.3f %.2f updates/s", self.updates, loss / dist.get_world_size(), norm, rate)
                start = time.perf_counter()
