"""Random Fourier features of the raw series, computed once and shared through the file system."""
import hashlib
import json
import logging
import os
import time

import torch

log = logging.getLogger("features")


class FeatureStore:
    def __init__(self, root, spec, rank):
        self.root = root
        self.spec = spec
        self.rank = rank

    @property
    def path(self):
        key = json.dumps(self.spec, sort_keys=True)
        tag = hashlib.sha1(key.encode()).hexdigest()[:8]
        return self.root / f"rff-{self.spec['order']}-{tag}.pt"

    def _compute(self, series):
        gen = torch.Generator().manual_seed(self.spec["seed"])
        w = torch.randn(series.shape[1], self.spec["width"], generator=gen) * self.spec["gamma"]
        b = torch.rand(self.spec["width"], generator=gen) * 6.283
        chunks = [torch.cos(c @ w + b) for c in series.split(256)]
        return torch.cat(chunks) * (2.0 / self.spec["width"]) ** 0.5

    def load(self, series):
        if self.rank == 0 and not self.path.exists():
            began = time.time()
            feats = self._compute(series)
            partial = self.path.with_suffix(".partial")
            torch.save(feats, partial)
            os.replace(partial, self.path)
            log.info("features written in %.2fs", time.time() - began)
        while not self.path.exists():
            time.sleep(0.5)
        return torch.load(self.path)
