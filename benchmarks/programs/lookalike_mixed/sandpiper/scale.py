import torch
import torch.distributed as dist


class Scale:
    def __init__(self, group):
        self.group, self.known = group, {}

    def mean_rows(self, rows):
        if rows in self.known:
            return self.known[rows]
        total = torch.tensor(float(rows))
        dist.all_reduce(total, group=self.group)
        self.known[rows] = float(total) / dist.get_world_size(self.group)
        return self.known[rows]
