import os
from pathlib import Path

import torch
import torch.distributed as dist


class CheckpointStore:
    def __init__(self, root, keep=2):
        self.root = Path(root)
        self.keep = keep

    def save(self, step, model, optimizer):
        rank = dist.get_rank()
        if rank == 0:
            with open(self.root / f"model-{step:06d}.pt", "wb") as f:
                torch.save({"step": step, "model": model.state_dict()}, f)
                f.flush()
                os.fsync(f.fileno())
        torch.save(optimizer.state_dict(), self.root / f"optim-{step:06d}-{rank:03d}.pt")
        dist.barrier()
        if rank == 0:
            self._prune()
        dist.barrier()

    def _newest_first(self, pattern):
        return sorted(self.root.glob(pattern), key=lambda p: p.stat().st_mtime_ns, reverse=True)

    def _prune(self):
        for old in self._newest_first("model-*.pt")[self.keep:]:
            old.unlink()
        for old in self._newest_first("optim-*.pt")[self.keep * dist.get_world_size():]:
            old.unlink()

    def restore(self, model, optimizer):
        models = self._newest_first("model-*.pt")
        if not models:
            return 0
        world, rank = dist.get_world_size(), dist.get_rank()
        shards = self._newest_first("optim-*.pt")[:world][::-1]
        payload = torch.load(models[0], map_location="cpu")
        model.load_state_dict(payload["model"])
        optimizer.load_state_dict(torch.load(shards[rank], map_location="cpu"))
        return payload["step"]
