import torch


class SignalStream:
    """Sine bursts; now and then a sensor of the second group reports nonsense."""

    def __init__(self, args, rank):
        self.args, self.rank = args, rank
        self.g = torch.Generator().manual_seed(args.seed * 1000 + rank)
        self.drawn = 0

    def draw(self):
        n, w = self.args.batch, self.args.width
        y = torch.randint(0, self.args.classes, (n,), generator=self.g)
        t = torch.arange(w).float()
        phase = torch.rand(n, 1, generator=self.g) * 6.283
        x = torch.sin(t * (0.15 + 0.12 * y[:, None]) + phase) + 0.4 * torch.randn(n, w, generator=self.g)
        self.drawn += 1
        if self.rank == 1 and self.drawn % 37 == 0:
            x[3, 10:20] = float("inf")
        return x, y
