import torch.distributed as dist


class Grid:
    """world = stages x replicas; rank = replica * stages + stage."""

    def __init__(self, stages):
        self.rank, world = dist.get_rank(), dist.get_world_size()
        assert world % stages == 0
        self.stages, self.replicas = stages, world // stages
        self.stage, self.replica = self.rank % stages, self.rank // stages
        self.dp_group = None
        for s in range(stages):
            g = dist.new_group([r * stages + s for r in range(self.replicas)])
            if s == self.stage:
                self.dp_group = g
        self.first, self.last = self.stage == 0, self.stage == stages - 1

    @property
    def prev(self):
        return self.rank - 1

    @property
    def next(self):
        return self.rank + 1
