import torch
from torch.utils.data import IterableDataset


class DocumentSource:
    """Stands for a tokenized shard on object storage: document i is generated from its index."""

    def __init__(self, vocab, seed):
        self.vocab, self.seed = vocab, seed
        self.table = torch.randint(0, vocab, (vocab, 2), generator=torch.Generator().manual_seed(seed))

    def __getitem__(self, i):
        gen = torch.Generator().manual_seed(self.seed * 100003 + i)
        n = int(torch.randint(12, 60, (1,), generator=gen))
        doc = torch.randint(1, self.vocab, (n,), generator=gen)
        pick = torch.randint(0, 2, (n,), generator=gen)
        for t in range(1, n):
            doc[t] = self.table[doc[t - 1], pick[t]]
        return doc


class PackedStream(IterableDataset):
    """Documents rank, rank + world, ... concatenated and cut into blocks of seq_len + 1 tokens."""

    def __init__(self, source, seq_len, rank, world, eos=0):
        self.source, self.seq_len, self.eos = source, seq_len, eos
        self.rank, self.world = rank, world
        self.next_doc = rank
        self.carry = torch.empty(0, dtype=torch.long)

    def __iter__(self):
        while True:
            while len(self.carry) <= self.seq_len:
                doc = self.source[self.next_doc]
                self.next_doc += self.world
                self.carry = torch.cat([self.carry, doc, torch.tensor([self.eos])])
            block, self.carry = self.carry[:self.seq_len + 1], self.carry[self.seq_len:]
            yield block.clone()

    def state_dict(self):
        return {"next_doc": self.next_doc, "carry": self.carry.clone()}

    def load_state_dict(self, state):
        self.next_doc, self.carry = state["next_doc"], state["carry"].clone()
