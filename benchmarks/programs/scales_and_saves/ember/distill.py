from collections import OrderedDict

import torch
import torch.nn.functional as F


class LogitCache:
    """What the teacher said about a sample; least recently used entries leave first."""

    def __init__(self, teacher, limit):
        self.teacher, self.limit = teacher, limit
        self.store = OrderedDict()
        self.hits = self.asks = 0

    @torch.no_grad()
    def __call__(self, index, x):
        ids = index.tolist()
        self.asks += len(ids)
        missing = [k for k, i in enumerate(ids) if i not in self.store]
        fresh = {}
        if missing:
            for k, row in zip(missing, self.teacher(x[missing])):
                fresh[ids[k]] = row.half().clone()
        self.hits += len(ids) - len(missing)
        out = torch.stack([fresh[i] if i in fresh else self.store[i] for i in ids]).float()
        for i in ids:
            if i in fresh:
                self.store[i] = fresh[i]
            self.store.move_to_end(i)
        while len(self.store) > self.limit:
            self.store.popitem(last=False)
        return out


def kd_loss(student, teacher, y, temp=3.0, alpha=0.7):
    soft = F.kl_div(F.log_softmax(student / temp, 1), F.softmax(teacher / temp, 1), reduction="batchmean")
    return alpha * temp * temp * soft + (1 - alpha) * F.cross_entropy(student, y)
