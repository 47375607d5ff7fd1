import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F

from corpus import PAD


class TokenLoss:
    """Label-smoothed cross entropy per target token. With ``global_tokens`` the number of
    tokens is counted over all processes, so that short batches do not weigh more."""

    def __init__(self, smoothing=0.1, global_tokens=True):
        self.smoothing = smoothing
        self.global_tokens = global_tokens

    def num_items(self, target):
        count = (target != PAD).sum().float()
        if self.global_tokens:
            dist.all_reduce(count)
            count /= dist.get_world_size()
        return count

    def __call__(self, logits, target):
        loss = F.cross_entropy(
            logits.flatten(0, 1), target.flatten(), ignore_index=PAD, label_smoothing=self.smoothing, reduction="sum"
        )
        return loss / self.num_items(target)


class Trainer:
    def __init__(self, model, criterion, optimizer, scheduler, clip=5.0):
        self.model, self.criterion = model, criterion
        self.optimizer, self.scheduler, self.clip = optimizer, scheduler, clip
        self.updates = 0

    def train_step(self, src, tgt):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(src, tgt[:, :-1]), tgt[:, 1:])
        loss.backward()
        gnorm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.updates += 1
        return loss.detach(), gnorm

    def train_epoch(self, loader, epoch):
        self.model.train()
        loader.sampler.set_epoch(epoch)
        for src, tgt in loader:
            loss, gnorm = self.train_step(src, tgt)
            if self.updates % 10 == 0:
                if self.criterion.global_tokens:
                    dist.all_reduce(loss)
                    loss /= dist.get_world_size()
                logging.info("epoch %d update %d loss %.3f gnorm %.3f lr %.3f",
                             epoch, self.updates, loss.item(), gnorm.item(), self.scheduler.get_last_lr()[0])

    @torch.no_grad()
    def validate(self, loader):
        self.model.eval()
        stats = torch.zeros(2)
        for src, tgt in loader:
            logits = self.model.module(src, tgt[:, :-1])
            nll = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD, reduction="sum")
            stats += torch.stack([nll, (tgt[:, 1:] != PAD).sum().float()])
        dist.all_reduce(stats)
        return (stats[0] / stats[1]).exp().item()
