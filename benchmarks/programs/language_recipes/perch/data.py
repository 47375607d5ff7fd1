"""Three synthetic domains mixed by a schedule: prose, code and tables."""
import torch

VOCAB = 96
RANGES = {"prose": (0, 48), "code": (32, 80), "table": (80, 96)}


class DomainMixture:
    def __init__(self, seq_len: int, batch: int, seed: int, rank: int, schedule):
        self.seq_len, self.batch = seq_len, batch
        self.schedule = schedule
        self.gen = torch.Generator().manual_seed(seed * 7919 + rank)

    def weights(self, step: int) -> list[float]:
        for until, w in self.schedule:
            if step < until:
                return w
        return self.schedule[-1][1]

    def _doc(self, name: str) -> torch.Tensor:
        lo, hi = RANGES[name]
        span = hi - lo
        n = self.seq_len + 1
        start = torch.randint(0, span, (1,), generator=self.gen)
        if name == "table":
            period = 4
            cell = torch.randint(0, 2, (period,), generator=self.gen)
            return lo + cell.repeat(n // period + 1)[:n]
        stride = torch.randint(1, 4, (1,), generator=self.gen)
        noise = (torch.rand(n, generator=self.gen) < 0.1).long()
        return lo + (start + stride * torch.arange(n) + noise) % span

    def next(self, step: int) -> torch.Tensor:
        w = torch.tensor(self.weights(step))
        names = list(RANGES)
        pick = torch.multinomial(w, self.batch, replacement=True, generator=self.gen)
        return torch.stack([self._doc(names[i]) for i in pick.tolist()])
