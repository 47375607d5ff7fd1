import torch


def documents(count, seed):
    gen = torch.Generator().manual_seed(seed)
    for _ in range(count):
        length = int(torch.randint(10, 190, (1,), generator=gen))
        start = int(torch.randint(0, 256, (1,), generator=gen))
        yield (start + torch.arange(length)) % 256


class Packed:
    """Concatenates this rank's documents and cuts the stream into rows of seq_len + 1."""

    def __init__(self, count, seed, rank, world, seq_len=64, batch=2, repeat=False):
        self.count, self.seed = count, seed
        self.rank, self.world = rank, world
        self.seq_len, self.batch = seq_len, batch
        self.repeat = repeat

    def rows(self):
        epoch = 0
        while True:
            rest = torch.empty(0, dtype=torch.long)
            for i, doc in enumerate(documents(self.count, self.seed + epoch)):
                if i % self.world != self.rank:
                    continue
                rest = torch.cat([rest, doc])
                while len(rest) > self.seq_len:
                    yield rest[: self.seq_len + 1]
                    rest = rest[self.seq_len:]
            if not self.repeat:
                return
            epoch += 1

    def __iter__(self):
        group = []
        for row in self.rows():
            group.append(row)
            if len(group) == self.batch:
                rows = torch.stack(group)
                yield rows[:, :-1], rows[:, 1:]
                group = []
