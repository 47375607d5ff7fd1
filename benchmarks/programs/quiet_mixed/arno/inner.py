import torch
import torch.nn.functional as F


class InnerLoop:
    def __init__(self, model, lr, shard):
        self.model = model
        self.optim = torch.optim.AdamW(model.parameters(), lr=lr)
        self.batches = shard.batches()

    def run(self, steps):
        total = torch.zeros(1)
        for _ in range(steps):
            ids = next(self.batches)
            logits = self.model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            self.optim.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optim.step()
            total += loss.detach()
        return total / steps
