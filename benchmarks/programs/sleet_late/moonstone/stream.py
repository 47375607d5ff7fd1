import torch
from torch.utils.data import IterableDataset, get_worker_info


def make_pack(pack_id, size=32):
    g = torch.Generator().manual_seed(500 + pack_id)
    label = torch.randint(0, 5, (size,), generator=g)
    base = torch.linspace(0, 6.28, 48)
    wave = torch.sin(base * (label.unsqueeze(1) + 1) + torch.rand(size, 1, generator=g) * 6.28)
    return wave + 0.2 * torch.randn(size, 48, generator=g), label


def jitter(x, g):
    shift = int(torch.randint(0, 48, (1,), generator=g))
    scale = 0.7 + 0.6 * torch.rand(1, generator=g)
    return torch.roll(x, shift, -1) * scale


class WaveStream(IterableDataset):
    """Packs of labelled waves.

    As in repeated augmentation, every wave is delivered `views` times per pass, each time with
    its own jitter; a pack belongs to exactly one (rank, worker).
    """

    def __init__(self, packs, rank, world, views, seed):
        self.packs, self.rank, self.world, self.views, self.seed = packs, rank, world, views, seed
        self.round = 0

    def __iter__(self):
        info = get_worker_info()
        wid, nw = (info.id, info.num_workers) if info else (0, 1)
        slot = self.rank * nw + wid
        g = torch.Generator().manual_seed(self.seed * 7919 + self.round * 101 + slot)
        mine = [make_pack(p) for p in range(slot, self.packs, self.world * nw)]
        x = torch.cat([a for a, _ in mine])
        y = torch.cat([b for _, b in mine])
        for _ in range(self.views):
            for i in torch.randperm(len(x), generator=g).tolist():
                yield jitter(x[i], g), y[i]
