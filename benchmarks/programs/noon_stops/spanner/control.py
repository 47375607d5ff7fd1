import time

import torch
import torch.distributed as dist


class Agreement:
    """One small reduction per step carries every local vote; all ranks act on the same answer."""

    def __init__(self, budget, plateau):
        self.start = time.monotonic()
        self.budget, self.plateau = budget, plateau
        self.best, self.stale = float("inf"), 0

    def vote(self, loss):
        bad = 0.0 if torch.isfinite(loss) else 1.0
        late = 1.0 if time.monotonic() - self.start > self.budget else 0.0
        value = loss.detach() if not bad else torch.tensor(0.0)
        votes = torch.stack([torch.tensor(bad), torch.tensor(late), value, torch.tensor(1.0 - bad)])
        dist.all_reduce(votes)
        return {"skip": votes[0] > 0, "late": votes[1] > 0, "mean": (votes[2] / votes[3].clamp(min=1)).item()}

    def flat(self, mean):
        if mean < self.best - 1e-3:
            self.best, self.stale = mean, 0
        else:
            self.stale += 1
        return self.stale >= self.plateau


def choose_chunk(layer, sample, repeats):
    """Times a few chunk sizes on this machine's first process."""
    best, best_time = None, float("inf")
    with torch.no_grad():
        for chunk in (16, 32, 64, 128):
            t0 = time.perf_counter()
            for _ in range(repeats):
                for part in sample.split(chunk):
                    layer(part)
            spent = time.perf_counter() - t0
            if spent < best_time:
                best, best_time = chunk, spent
    return best
