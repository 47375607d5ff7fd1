import json

import torch.distributed as dist


class CurriculumLink:
    """Rank 0 decides the crop length of each optimizer step, the other ranks look it up."""

    def __init__(self, store, rank, start=24, end=96, growth=2):
        self.store = dist.PrefixStore("curriculum", store)
        self.rank = rank
        self.length, self.end, self.growth = start, end, growth
        self.recent = []

    def note(self, loss):
        self.recent = (self.recent + [loss])[-4:]

    def publish(self, step):
        if len(self.recent) == 4 and self.recent[-1] <= self.recent[0]:
            self.length = min(self.length + self.growth, self.end)
        self.store.set(f"step/{step}", json.dumps({"length": self.length}))
        return self.length

    def fetch(self, step):
        return json.loads(self.store.get(f"step/{step}"))["length"]
