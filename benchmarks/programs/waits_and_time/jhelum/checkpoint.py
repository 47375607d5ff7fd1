import json
import os

import torch
import torch.distributed as dist


class ShardedCheckpointer:
    """One file with the weights, one momentum shard per rank gathered on rank 0."""

    def __init__(self, folder, rank, world):
        self.folder, self.rank, self.world = folder, rank, world
        self.last_epoch = None

    def save(self, engine, epoch, metric):
        shard = engine.optim.buf
        gathered = [torch.empty_like(shard) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(shard, gathered, dst=0)
        if self.rank == 0:
            path = os.path.join(self.folder, "best.pt")
            torch.save({"model": engine.model.state_dict(), "momentum": torch.cat(gathered)}, path + ".tmp")
            os.replace(path + ".tmp", path)
            with open(os.path.join(self.folder, "best.json"), "w") as fh:
                json.dump({"epoch": epoch, "val": metric}, fh)
        dist.barrier()
        self.last_epoch = epoch
