import json
import logging

import torch
import torch.distributed as dist

log = logging.getLogger("mining")


class HardExampleExchange:
    """Every rank reports documents it keeps getting wrong; rank 0 merges the reports
    and hands out new sampling weights."""

    def __init__(self, store, rank: int, world: int, threshold: float):
        self.store = dist.PrefixStore("mining", store)
        self.rank = rank
        self.world = world
        self.threshold = threshold

    def _key(self, epoch: int, rank: int) -> str:
        return f"epoch{epoch}/rank{rank}"

    @torch.no_grad()
    def scan(self, model, corpus, lo: int, hi: int, batch: int):
        hard = []
        model.eval()
        for i in range(lo, hi, batch):
            idx = torch.arange(i, min(i + batch, hi))
            losses = torch.nn.functional.cross_entropy(model(corpus.ids[idx]), corpus.labels[idx], reduction="none")
            hard += idx[losses > self.threshold].tolist()
        model.train()
        return hard

    def report(self, epoch: int, hard):
        log.info("epoch %d: %d hard documents on rank %d", epoch, len(hard), self.rank)
        payload = {"rank": self.rank, "docs": hard}
        self.store.set(self._key(epoch, self.rank), json.dumps(payload))

    def merge(self, epoch: int, weights: torch.Tensor, boost: float) -> torch.Tensor:
        fresh = torch.ones_like(weights)
        if self.rank == 0:
            keys = [self._key(epoch, r) for r in range(self.world)]
            self.store.wait(keys)
            for key in keys:
                report = json.loads(self.store.get(key))
                fresh[report["docs"]] = boost
        dist.broadcast(fresh, src=0)
        return fresh
