import json

import torch.distributed as dist


class Curriculum:
    """Rank 0 scores the policy and tells the others the maze size of the next phase."""

    def __init__(self, size=4, limit=8, goal=0.05):
        self.size, self.limit, self.goal = size, limit, goal
        self.store = dist.PrefixStore("curriculum", dist.group.WORLD.get_group_store())
        self.rank = dist.get_rank()
        self.best = -1.0

    def publish(self, phase, success):
        if success > self.best + self.goal:
            self.best = success
            self.size = min(self.size + 1, self.limit)
        self.store.set(f"phase{phase}", json.dumps({"size": self.size}))

    def fetch(self, phase):
        self.size = json.loads(self.store.get(f"phase{phase}"))["size"]

    def advance(self, phase, success):
        if self.rank == 0:
            self.publish(phase, success)
        else:
            self.fetch(phase)
