import torch.distributed as dist


class Roles:
    """The first half of the ranks learns, the other half plays."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        half = self.world // 2
        self.learner_ranks = list(range(half))
        self.actor_ranks = list(range(half, self.world))
        self.learners = dist.new_group(self.learner_ranks)
        self.actors = dist.new_group(self.actor_ranks)

    @property
    def learning(self):
        return self.rank in self.learner_ranks

    def partner(self):
        half = self.world // 2
        return self.rank + half if self.learning else self.rank - half
