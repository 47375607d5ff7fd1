import time

import torch


class SensorArchive:
    """Decodes the rank's part of the archive up front."""

    def __init__(self, rank, world_size, files=14, per_file=600, dim=48):
        xs, ys = [], []
        w = torch.randn(dim, 4, generator=torch.Generator().manual_seed(0))
        sizes = [per_file * (1 + 4 * (f % 2)) for f in range(files)]
        for f in range(rank, files, world_size):
            gen = torch.Generator().manual_seed(100 + f)
            x = torch.randn(sizes[f], dim, generator=gen)
            time.sleep(sizes[f] / 12000)
            xs.append(x)
            ys.append((x @ w + 0.5 * torch.randn(sizes[f], 4, generator=gen)).argmax(1))
        self.x, self.y = torch.cat(xs), torch.cat(ys)
        self.gen = torch.Generator().manual_seed(rank)

    def sample(self, n):
        idx = torch.randint(0, len(self.x), (n,), generator=self.gen)
        return self.x[idx], self.y[idx]
