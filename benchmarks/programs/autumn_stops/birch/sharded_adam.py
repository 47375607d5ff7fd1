"""Adam whose moments are partitioned over the ranks (stage-1 style)."""
import torch
import torch.distributed as dist


class ShardedAdam:
    def __init__(self, params, lr, weight_decay=0.0):
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.params = [p for p in params if p.requires_grad]
        self.owners = self._partition()
        mine = [p for p, o in zip(self.params, self.owners) if o == self.rank]
        self.inner = torch.optim.AdamW(mine, lr=lr, weight_decay=weight_decay)

    def _partition(self):
        loads = [0] * self.world_size
        owners = []
        for p in self.params:
            target = loads.index(min(loads))
            loads[target] += p.numel()
            owners.append(target)
        return owners

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        works = []
        for p in self.params:
            works.append(dist.all_reduce(p.grad, async_op=True))
        for w in works:
            w.wait()
        for p in self.params:
            p.grad.div_(self.world_size)
        self.inner.step()
        works = [dist.broadcast(p.data, src=o, async_op=True) for p, o in zip(self.params, self.owners)]
        for w in works:
            w.wait()

    def consolidated_state_dict(self):
        """Every rank contributes its partition; the full list is returned everywhere."""
        gathered = [None] * self.world_size
        dist.all_gather_object(gathered, self.inner.state_dict())
        return {"owners": self.owners, "partitions": gathered}
