import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


class ShardStream(IterableDataset):
    """Endless pass over numbered shards; shards are dealt over (rank, worker) and each stream can be resumed."""

    def __init__(self, shards, per_shard, epochs, seed):
        self.shards, self.per_shard, self.epochs, self.seed = shards, per_shard, epochs, seed
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.at = 0

    def _plan(self):
        info = get_worker_info()
        w, n = (info.id, info.num_workers) if info else (0, 1)
        out = []
        for e in range(self.epochs):
            order = torch.randperm(self.shards, generator=torch.Generator().manual_seed(self.seed + e)).tolist()
            out += [(e, s) for s in order[self.rank * n + w::self.world * n]]
        return out

    def _read(self, epoch, shard):
        g = torch.Generator().manual_seed(shard)
        x = torch.randn(self.per_shard, 20, generator=g)
        y = (x[:, 0] * x[:, 1] + x[:, 2].abs() - 0.7 > 0).long()
        order = torch.randperm(self.per_shard, generator=torch.Generator().manual_seed(self.seed + 1000 * epoch + shard))
        return x[order], y[order]

    def __iter__(self):
        plan = self._plan()
        total = len(plan) * self.per_shard
        while self.at < total:
            k, i = divmod(self.at, self.per_shard)
            x, y = self._read(*plan[k])
            for j in range(i, self.per_shard):
                self.at += 1
                yield x[j], y[j]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, sd):
        self.at = sd["at"]
