"""Training engine: one step, skipping of unusable batches, bookkeeping."""
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F

log = logging.getLogger("engine")


class NonFiniteLoss(ArithmeticError):
    pass


class Engine:
    def __init__(self, model, optimizer, rank, max_norm=1.0):
        self.model, self.optimizer = model, optimizer
        self.rank, self.max_norm = rank, max_norm
        self.skipped = []
        self.step_id = 0

    def _forward(self, mel, target):
        hidden = self.model.encode(mel)
        logits = self.model.classify(hidden)
        loss = F.cross_entropy(logits.transpose(1, 2), target)
        if not torch.isfinite(loss):
            raise NonFiniteLoss(f"loss is {loss.item()} at step {self.step_id}")
        return loss

    def _average_gradients(self, valid):
        """Average over the ranks that had a usable batch."""
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.model.parameters()]
        flat = torch.cat([g.reshape(-1) for g in grads] + [torch.tensor([float(valid)])])
        dist.all_reduce(flat)
        count = flat[-1].clamp(min=1.0)
        for p, g in zip(self.model.parameters(), flat[:-1].split([p.numel() for p in self.model.parameters()])):
            p.grad = g.view_as(p) / count

    def step(self, mel, target):
        self.step_id += 1
        self.optimizer.zero_grad(set_to_none=True)
        valid, value = True, float("nan")
        try:
            loss = self._forward(mel, target)
            loss.backward()
            value = loss.item()
        except NonFiniteLoss as err:
            valid = False
            self.skipped.append((self.step_id, err))
        self._average_gradients(valid)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return value

    def report(self):
        for step_id, err in self.skipped[:3]:
            log.info("rank %d skipped step %d: %s", self.rank, step_id, err)
        log.info("rank %d: %d of %d batches skipped", self.rank, len(self.skipped), self.step_id)
