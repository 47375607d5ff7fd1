import os
from pathlib import Path

import torch
import torch.distributed as dist


class CheckpointManager:
    """Atomic single-file checkpoints written by the first rank."""

    def __init__(self, root: str, keep: int = 2):
        self.root = Path(root)
        self.keep = keep
        if dist.get_rank() == 0:
            self.root.mkdir(parents=True, exist_ok=True)

    def _files(self):
        return sorted(self.root.glob("step_*.pt"))

    def clear(self):
        if dist.get_rank() == 0:
            for f in self._files():
                f.unlink()
        dist.barrier()

    def save(self, step: int, model, optimizer, scheduler, stream):
        streams = [None] * dist.get_world_size()
        dist.all_gather_object(streams, stream.state_dict())
        payload = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "streams": streams,
        }
        if dist.get_rank() == 0:
            tmp = self.root / "partial.tmp"
            torch.save(payload, tmp)
            os.replace(tmp, self.root / f"step_{step:06d}.pt")
            for old in self._files()[: -self.keep]:
                old.unlink()
        dist.barrier()

    def load_latest(self, model, optimizer, scheduler, stream) -> int:
        files = self._files()
        if not files:
            return 0
        payload = torch.load(files[-1], map_location="cpu", weights_only=False)
        model.load_state_dict(payload["model"])
        optimizer.load_state_dict(payload["optimizer"])
        scheduler.load_state_dict(payload["scheduler"])
        stream.load_state_dict(payload["streams"][dist.get_rank()])
        return payload["step"]
