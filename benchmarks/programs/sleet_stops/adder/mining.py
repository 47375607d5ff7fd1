"""Hard negatives for the two-tower model, shared between ranks through files."""
import os
import time

import torch
import torch.distributed as dist


def mining_key(towers, round_no, options):
    """A short name for what was mined with which settings."""
    parts = (towers, round_no, tuple(sorted(options.items())))
    return f"{hash(parts) & 0xFFFFFFFF:08x}"


@torch.no_grad()
def mine(model, queries, docs, answer, take):
    scores = model.q(queries) @ model.d(docs).t()
    scores[torch.arange(len(queries)), answer] = float("-inf")
    return scores.topk(take, dim=1).indices


class NegativeStore:
    def __init__(self, folder, options):
        self.folder, self.options = folder, options

    def path(self, round_no):
        return os.path.join(self.folder, f"neg-{mining_key('q-d', round_no, self.options)}.pt")

    def refresh(self, round_no, compute):
        """Rank 0 computes the round's table, the others pick it up."""
        path = self.path(round_no)
        if dist.get_rank() == 0:
            torch.save(compute(), path + ".tmp")
            os.replace(path + ".tmp", path)
        while not os.path.exists(path):
            time.sleep(0.05)
        return torch.load(path)
