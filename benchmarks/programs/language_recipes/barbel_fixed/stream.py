"""Sharded text stream with a shuffle buffer that can be stopped and continued."""
import torch

SHARD_LEN = 24


def read_shard(shard: int, seq_len: int, vocab: int) -> list[tuple[int, torch.Tensor]]:
    """Documents of one shard as (document id, tokens)."""
    g = torch.Generator().manual_seed(10_000 + shard)
    docs = []
    for i in range(SHARD_LEN):
        start = torch.randint(0, vocab, (1,), generator=g)
        stride = 1 + shard % 5
        noise = (torch.rand(seq_len + 1, generator=g) < 0.05).long()
        docs.append((shard * SHARD_LEN + i, (start + stride * torch.arange(seq_len + 1) + noise) % vocab))
    return docs


class StreamingText:
    """Iterates the shards of this rank in order, mixing through a small buffer."""

    def __init__(self, n_shards: int, seq_len: int, vocab: int, rank: int, world: int,
                 buffer: int = 16, seed: int = 0):
        self.seq_len, self.vocab, self.buffer_size = seq_len, vocab, buffer
        self.shards = list(range(n_shards))[rank::world]
        self.gen = torch.Generator().manual_seed(seed * 1009 + rank)
        self.cursor = (0, 0)
        self.buffer = []

    def _pull(self):
        shard_idx, offset = self.cursor
        shard = self.shards[shard_idx % len(self.shards)]
        doc = read_shard(shard, self.seq_len, self.vocab)[offset]
        offset += 1
        if offset == SHARD_LEN:
            shard_idx, offset = shard_idx + 1, 0
        self.cursor = (shard_idx, offset)
        return doc

    def next_doc(self):
        while len(self.buffer) < self.buffer_size:
            self.buffer.append(self._pull())
        j = int(torch.randint(0, len(self.buffer), (1,), generator=self.gen))
        doc = self.buffer[j]
        self.buffer[j] = self._pull()
        return doc

    def next_batch(self, n: int):
        docs = [self.next_doc() for _ in range(n)]
        return [d[0] for d in docs], torch.stack([d[1] for d in docs])

    def state_dict(self):
        return {"shards": list(self.shards), "cursor": self.cursor,
                "buffer": list(self.buffer), "gen": self.gen.get_state()}

    def load_state_dict(self, state):
        self.shards = list(state["shards"])
        self.cursor = tuple(state["cursor"])
        self.buffer = list(state["buffer"])
        self.gen.set_state(state["gen"])
