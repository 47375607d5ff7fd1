import contextlib
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F

log = logging.getLogger("engine")


class AccumulatingEngine:
    def __init__(self, model, optimizer, scheduler, accum_steps, max_norm):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.accum_steps = accum_steps
        self.max_norm = max_norm
        self.global_step = 0

    def train_epoch(self, loader, epoch):
        self.model.train()
        num_batches = len(loader)
        remainder = num_batches % self.accum_steps
        running = torch.zeros(2)
        for i, (images, labels) in enumerate(loader):
            boundary = (i + 1) % self.accum_steps == 0
            last = i + 1 == num_batches
            in_tail = remainder and i >= num_batches - remainder
            window = remainder if in_tail else self.accum_steps

            ctx = contextlib.nullcontext() if boundary else self.model.no_sync()
            with ctx:
                loss = F.cross_entropy(self.model(images), labels, label_smoothing=0.05)
                (loss / window).backward()

            if boundary or last:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad(set_to_none=True)
                self.global_step += 1
            running += torch.tensor([loss.item() * len(labels), len(labels)])
        dist.all_reduce(running)
        if dist.get_rank() == 0:
            log.info("epoch %d step %d train loss %.4f", epoch, self.global_step, (running[0] / running[1]).item())

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        stats = torch.zeros(2)
        for images, labels in loader:
            pred = self.model.module(images).argmax(1)
            stats += torch.tensor([(pred == labels).sum().item(), len(labels)])
        dist.all_reduce(stats)
        return (stats[0] / stats[1]).item()
