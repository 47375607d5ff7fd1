import contextlib
import logging

import torch
import torch.distributed as dist


class SFTTrainer:
    def __init__(self, model, optimizer, loader, accumulation, max_grad_norm=1.0):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.accumulation = accumulation
        self.max_grad_norm = max_grad_norm
        self.global_step = 0

    def maybe_sync(self, i):
        """Only the micro batch that closes an accumulation window talks to the others."""
        if (i + 1) % self.accumulation == 0:
            return contextlib.nullcontext()
        return self.model.no_sync()

    def window_size(self, i):
        return min(self.accumulation, len(self.loader) - i // self.accumulation * self.accumulation)

    def is_boundary(self, i):
        return (i + 1) % self.accumulation == 0 or i + 1 == len(self.loader)

    def train_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        window = []
        for i, (ids, labels) in enumerate(self.loader):
            with self.maybe_sync(i):
                loss = self.model(ids, labels)
                (loss / self.window_size(i)).backward()
            window.append(loss.detach())
            if not self.is_boundary(i):
                continue
            torch.nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], self.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.global_step += 1
            mean = torch.stack(window).mean()
            dist.all_reduce(mean)
            logging.info("epoch %d step %d loss %.4f", epoch, self.global_step, mean.item() / dist.get_world_size())
            window.clear()
