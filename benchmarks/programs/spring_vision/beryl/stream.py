import torch
from torch.utils.data import IterableDataset


class SpriteStream(IterableDataset):
    """Endless stream of the sprites of this process' packs, with a shuffle inside every pack."""

    def __init__(self, packs, per_pack, rank, world, size=12, seed=0):
        self.per_pack, self.size, self.seed = per_pack, size, seed
        self.todo = list(range(packs))[rank::world]
        self.all_packs = list(self.todo)
        self.rng = torch.Generator().manual_seed(seed * 7919 + rank)
        self.offset = 0
        self.order = None

    def sprite(self, pack, k):
        g = torch.Generator().manual_seed(pack * 10_007 + k)
        cls = pack % 6
        y, x = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        f = 0.3 + 0.25 * cls
        img = torch.sin(f * x + 6.28 * torch.rand(1, generator=g)) * torch.cos(f * y)
        return (img + 0.05 * torch.randn(self.size, self.size, generator=g)).unsqueeze(0), cls, pack * self.per_pack + k

    def state_dict(self):
        return {"todo": list(self.todo), "all_packs": list(self.all_packs), "offset": self.offset,
                "order": self.order, "rng": self.rng.get_state()}

    def load_state_dict(self, s):
        self.todo, self.all_packs = list(s["todo"]), list(s["all_packs"])
        self.offset, self.order = s["offset"], s["order"]
        self.rng.set_state(s["rng"])

    def __iter__(self):
        while True:
            if not self.todo:
                self.todo = list(self.all_packs)
            pack = self.todo[0]
            if self.order is None:
                self.order = torch.randperm(self.per_pack, generator=self.rng).tolist()
            while self.offset < self.per_pack:
                self.offset += 1
                yield self.sprite(pack, self.order[self.offset - 1])
            self.todo.pop(0)
            self.order, self.offset = None, 0
