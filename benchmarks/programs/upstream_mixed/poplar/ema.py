import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class EMA:
    """Moving average of a model; every `switch_every` updates the model goes on from its average."""

    def __init__(self, model, decay=0.9, warmup=5, update_every=1, switch_every=None):
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.warmup, self.update_every, self.switch_every = warmup, update_every, switch_every
        self.count = 0

    @torch.no_grad()
    def update(self, model):
        self.count += 1
        if self.count <= self.warmup:
            for e, p in zip(self.average.module.parameters(), model.parameters()):
                e.copy_(p)
            return
        if self.count % self.update_every == 0:
            self.average.update_parameters(model)
        if self.switch_every is not None and self.count % self.switch_every == 0:
            for e, p in zip(self.average.module.parameters(), model.parameters()):
                p.copy_(e)
