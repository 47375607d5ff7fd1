from functools import cached_property

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TinyLM(nn.Module):
    def __init__(self, vocab=50, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)


class Trainer:
    def __init__(self, model, batches, callbacks, epochs, lr=3e-3):
        self.model = DDP(model)
        self.batches = batches
        self.callbacks = callbacks
        self.epochs = epochs
        self.epoch = 0
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)

    @cached_property
    def tokens_per_epoch(self):
        local = sum(b.numel() for b in self.batches)
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, local)
        return sum(counts)

    def _call(self, hook, *args):
        for cb in self.callbacks:
            getattr(cb, hook)(self, *args)

    def training_step(self, ids):
        logits = self.model(ids[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def fit(self):
        self._call("on_fit_start")
        for self.epoch in range(self.epochs):
            total = 0.0
            for ids in self.batches:
                loss = self.training_step(ids)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                total += loss.item()
            self._call("on_epoch_end", {"loss": total / len(self.batches)})
        self._call("on_fit_end")
