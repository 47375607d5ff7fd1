import torch
import torch.distributed as dist
from torch import nn
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from data import Instructions


class Recipe:
    """Full fine-tuning: the loss of a step is the mean over all answer tokens of all ranks."""

    def __init__(self, accumulate=3, vocab=160, width=32):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.accumulate = accumulate
        torch.manual_seed(12)
        self.model = nn.Sequential(nn.Embedding(vocab, width), nn.Linear(width, 2 * width), nn.GELU(),
                                   nn.Linear(2 * width, width), nn.Linear(width, vocab))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in (self.model[1], self.model[3]):
            fully_shard(layer, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.data = Instructions(self.rank)

    def step(self):
        tokens, total = torch.zeros(()), torch.zeros(())
        for i in range(self.accumulate):
            last = i == self.accumulate - 1
            self.model.set_requires_gradient_sync(last)
            ids, labels = self.data.next()
            count = (labels != -100).sum()
            logits = self.model(ids).float()
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
            loss.backward()
            tokens += count
            total += loss.detach()
        dist.all_reduce(tokens)
        dist.all_reduce(total)
        for p in self.model.parameters():
            p.grad.mul_(self.world / tokens.item())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).full_tensor()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item() / tokens.item(), norm.item()
