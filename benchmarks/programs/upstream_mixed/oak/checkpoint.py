"""Sharded checkpoints: the first replica writes, and on loading hands its shards to the other hosts."""
import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


class Checkpointer:
    def __init__(self, root, mesh):
        self.root = root
        self.replica = mesh.get_local_rank("dp_replicate")
        self.shard = mesh.get_local_rank("dp_shard")
        self.shard_size = mesh.size(1)
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.replicate_group = mesh.get_group("dp_replicate")
        self.source = dist.get_global_rank(self.replicate_group, 0)

    def path(self, step):
        return os.path.join(self.root, f"step{step}-shard{self.shard}.pt")

    def save(self, model, step):
        if self.replica == 0:
            local = {k: v.to_local() if isinstance(v, DTensor) else v for k, v in model.state_dict().items()}
            torch.save(local, self.path(step))
        dist.barrier()

    def fetch(self, step):
        """Bring the files of this step onto every host."""
        if self.local_rank < self.shard_size:
            content = [torch.load(self.path(step)) if self.replica == 0 else None]
            dist.broadcast_object_list(content, src=self.source, group=self.replicate_group)
            if self.replica != 0:
                torch.save(content[0], self.path(step))
        dist.barrier()

    @torch.no_grad()
    def load(self, model, step):
        self.fetch(step)
        local = torch.load(self.path(step))
        for name, value in model.state_dict().items():
            target = value.to_local() if isinstance(value, DTensor) else value
            target.copy_(local[name])
        dist.barrier()
