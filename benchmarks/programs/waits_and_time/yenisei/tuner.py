import time

import torch
import torch.nn.functional as F


def direct(conv, x):
    return conv(x)


def channels_last(conv, x):
    return conv(x.contiguous(memory_format=torch.channels_last)).contiguous()


def by_group(conv, x):
    xs, ws, bs = x.chunk(conv.groups, 1), conv.weight.chunk(conv.groups), conv.bias.chunk(conv.groups)
    return torch.cat([F.conv2d(a, w, b, padding=conv.padding) for a, w, b in zip(xs, ws, bs)], 1)


class KernelTuner:
    """Times the variants of an operation the first time it sees a module, then keeps the fastest."""

    VARIANTS = {"direct": direct, "channels_last": channels_last, "by_group": by_group}

    def __init__(self, seconds):
        self.seconds = seconds
        self.choice = {}

    @property
    def picked(self):
        return [name for name in self.choice.values()]

    @torch.no_grad()
    def _tune(self, conv, x):
        scores = {}
        for name, fn in self.VARIANTS.items():
            end, runs = time.perf_counter() + self.seconds / len(self.VARIANTS), 0
            while time.perf_counter() < end:
                fn(conv, x)
                runs += 1
            scores[name] = runs
        return max(scores, key=scores.get)

    def run(self, conv, x):
        key = id(conv)
        if key not in self.choice:
            self.choice[key] = self._tune(conv, x.detach())
        return self.VARIANTS[self.choice[key]](conv, x)
