"""Fill-drain pipeline over torch.distributed point-to-point calls."""
import torch
import torch.distributed as dist
from torch import nn


class PipelineEngine:
    def __init__(self, stage_module, cfg):
        self.cfg = cfg
        self.stage = dist.get_rank()
        self.num_stages = dist.get_world_size()
        self.module = stage_module
        self.opt = torch.optim.AdamW(stage_module.parameters(), lr=cfg["lr"])
        self.act_shape = (cfg["micro_batch"], cfg["seq"], cfg["dim"])
        self.ref_shape = (cfg["micro_batch"], cfg["dim"])

    @property
    def is_first(self):
        return self.stage == 0

    @property
    def is_last(self):
        return self.stage == self.num_stages - 1

    def _recv(self, shape, src):
        buf = torch.empty(shape)
        dist.recv(buf, src=src)
        return buf

    def _forward_first(self, tokens, with_reference):
        out = self.module(tokens)
        dist.send(out.detach(), dst=self.stage + 1)
        if with_reference:
            dist.send(self.module.reference(tokens), dst=self.num_stages - 1)
        return None, out

    def _forward_middle(self):
        x = self._recv(self.act_shape, self.stage - 1).requires_grad_()
        out = self.module(x)
        dist.send(out.detach(), dst=self.stage + 1)
        return x, out

    def _forward_last(self, labels, with_reference):
        x = self._recv(self.act_shape, self.stage - 1).requires_grad_()
        logits, pooled = self.module(x)
        loss = nn.functional.cross_entropy(logits, labels)
        if with_reference:
            reference = self._recv(self.ref_shape, 0)
            loss = loss + self.cfg["ref_weight"] * nn.functional.mse_loss(pooled, reference)
        return x, loss / self.cfg["num_micro"]

    def train_batch(self, micro_batches, with_reference):
        saved = []
        for tokens, labels in micro_batches:
            if self.is_first:
                saved.append(self._forward_first(tokens, with_reference))
            elif self.is_last:
                saved.append(self._forward_last(labels, with_reference))
            else:
                saved.append(self._forward_middle())

        total = 0.0
        for x, out in saved:
            if self.is_last:
                out.backward()
                total += out.item()
            else:
                out.backward(self._recv(self.act_shape, self.stage + 1))
            if not self.is_first:
                dist.send(x.grad, dst=self.stage - 1)
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.opt.step()
        self.opt.zero_grad()
        return total if self.is_last else None
