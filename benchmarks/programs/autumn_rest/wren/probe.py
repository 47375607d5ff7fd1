"""Activation statistics, to see dead or exploding layers early."""
from collections import defaultdict
from functools import partial

import torch
import torch.nn as nn


class ActivationProbe:
    def __init__(self, model, kinds=(nn.Linear, nn.LayerNorm), stride=4):
        self.stride = stride
        self.samples = defaultdict(list)
        for name, module in model.named_modules():
            if isinstance(module, kinds):
                module.register_forward_hook(partial(self._record, name))

    def _record(self, name, module, inputs, output):
        flat = output.detach().float().flatten()[:: self.stride].clone()
        self.samples[name].append((flat, flat.abs().quantile(0.99)))

    def summary(self):
        out = {}
        for name, entries in self.samples.items():
            values = torch.cat([v for v, _ in entries])
            out[name] = {
                "mean": values.mean().item(),
                "std": values.std().item(),
                "p99": torch.stack([q for _, q in entries]).max().item(),
            }
        return out


@torch.no_grad()
def diagnose(model, batches):
    was_training = model.training
    model.eval()
    probe = ActivationProbe(model)
    for x, _ in batches:
        model(x)
    result = probe.summary()
    model.train(was_training)
    return result
