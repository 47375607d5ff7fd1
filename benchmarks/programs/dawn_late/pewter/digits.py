"""Small CNN on drawn glyphs; three backward passes per update, data parallel inside the optimizer."""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from optim import AccumulatingSGD


class GlyphStream(IterableDataset):
    """Rows come from the drawing service one by one; a request takes about a millisecond."""

    def __init__(self, rank, rows):
        self.rank, self.rows = rank, rows
        g = torch.Generator().manual_seed(12)
        self.glyph = (torch.rand(8, 7, 7, generator=g) > 0.5).float()

    def __iter__(self):
        info = get_worker_info()
        part, parts = (info.id, info.num_workers) if info else (0, 1)
        g = torch.Generator().manual_seed(1000 * self.rank + part)
        for _ in range(self.rows // parts):
            time.sleep(0.001)
            k = torch.randint(8, (), generator=g)
            dx, dy = torch.randint(4, 9, (2,), generator=g).tolist()
            page = 0.2 * torch.randn(20, 20, generator=g)
            page[dy:dy + 7, dx:dx + 7] += self.glyph[k]
            yield page.unsqueeze(0), k


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.GroupNorm(4, 64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 8))


def main(passes=3, updates=50, rows=16):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = network()
    for p in net.parameters():
        dist.broadcast(p.data, src=0)
    opt = AccumulatingSGD(net.parameters(), lr=0.004, momentum=0.9)
    loader = DataLoader(GlyphStream(rank, passes * updates * rows), batch_size=rows, num_workers=2, prefetch_factor=4)
    running = 0.0
    for i, (x, y) in enumerate(loader, 1):
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.count()
        running += loss.item()
        if i % passes == 0:
            opt.step()
            opt.zero_grad()
        if i % (10 * passes) == 0:
            mean = torch.tensor(running / (10 * passes * world))
            dist.all_reduce(mean)
            running = 0.0
            if rank == 0:
                print(f"update {i // passes} loss {mean.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
