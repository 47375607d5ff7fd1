import hashlib
import io
from dataclasses import asdict

import torch
import torch.distributed as dist


class FeatureStats:
    """Mean and scale of the raw features, recomputed on a sliding window.

    Rank zero owns the window and publishes a snapshot, the others pick it up.
    The snapshots live in the job's store, so nothing goes over the training
    group while gradients are in flight.
    """

    def __init__(self, cfg, rank: int):
        self.cfg = cfg
        self.rank = rank
        self.store = dist.PrefixStore("feature_stats", dist.distributed_c10d._get_default_store())
        self.mean = torch.zeros(cfg.features)
        self.scale = torch.ones(cfg.features)

    def _key(self, epoch: int) -> str:
        text = repr(sorted(asdict(self.cfg).items()))
        return f"{hashlib.sha1(text.encode()).hexdigest()[:8]}/{epoch}"

    @staticmethod
    def _pack(mean: torch.Tensor, scale: torch.Tensor) -> bytes:
        buf = io.BytesIO()
        torch.save({"mean": mean, "scale": scale}, buf)
        return buf.getvalue()

    @staticmethod
    def _unpack(raw: bytes):
        state = torch.load(io.BytesIO(raw), weights_only=True)
        return state["mean"], state["scale"]

    def refresh(self, epoch: int, window: torch.Tensor) -> None:
        if epoch < self.cfg.stats_from_epoch:
            return
        key = self._key(epoch)
        if self.rank == 0:
            mean, scale = window.mean(0), window.std(0).clamp_min(1e-3)
            self.store.set(key, self._pack(mean, scale))
        self.mean, self.scale = self._unpack(self.store.get(key))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.scale
