from collections import deque

import torch


class FeatureTap:
    """Features with graph for the auxiliary loss; emptied after each step."""

    def __init__(self, module):
        self.items = []
        module.register_forward_hook(lambda m, i, o: self.items.append(o))

    def take(self):
        out, self.items = self.items, []
        return out


class History:
    """The last few detached batches of a layer, for the diversity report."""

    def __init__(self, module, keep=16):
        self.window = deque(maxlen=keep)
        module.register_forward_hook(self._push)

    def _push(self, module, inputs, output):
        if module.training:
            self.window.append(output.detach().clone())

    def spread(self):
        return torch.cat(list(self.window)).std(0).mean().item()


class MomentLog:
    """One number a step, kept for the whole run."""

    def __init__(self, module):
        self.means = []
        module.register_forward_hook(lambda m, i, o: self.means.append(o.detach().abs().mean().item()))
