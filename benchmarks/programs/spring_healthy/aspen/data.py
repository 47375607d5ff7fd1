"""Synthetic order-2 Markov text, generated once and held in memory."""
import torch


def build_corpus(vocab, length, seed=17):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, vocab, (vocab, vocab, 3), generator=g)
    pick = torch.randint(0, 3, (length,), generator=g).tolist()
    table = table.tolist()
    out = [1, 2]
    for i in range(2, length):
        out.append(table[out[-2]][out[-1]][pick[i]])
    return torch.tensor(out, dtype=torch.long)


class BatchSource:
    """Draws one global batch per step and hands back the rows of this rank."""

    def __init__(self, corpus, seq_len, global_batch, rank, world, seed):
        assert global_batch % world == 0
        self.corpus, self.seq_len, self.global_batch = corpus, seq_len, global_batch
        self.rank, self.world = rank, world
        self.gen = torch.Generator().manual_seed(seed)

    def next(self):
        starts = torch.randint(0, len(self.corpus) - self.seq_len - 1, (self.global_batch,), generator=self.gen)
        mine = starts.chunk(self.world)[self.rank]
        x = torch.stack([self.corpus[s:s + self.seq_len] for s in mine.tolist()])
        y = torch.stack([self.corpus[s + 1:s + 1 + self.seq_len] for s in mine.tolist()])
        return x, y
