import torch.distributed as dist


class Mesh:
    """ranks laid out as [data, expert]"""

    def __init__(self, expert):
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.ep, self.dp = expert, self.world // expert
        self.ep_group = self.edp_group = None
        for d in range(self.dp):
            ranks = list(range(d * self.ep, (d + 1) * self.ep))
            g = dist.new_group(ranks)
            if self.rank in ranks:
                self.ep_group = g
        for e in range(self.ep):
            ranks = list(range(e, self.world, self.ep))
            g = dist.new_group(ranks)
            if self.rank in ranks:
                self.edp_group = g
        self.ep_rank = self.rank % self.ep
