import torch

# share of each source over the course of the run: (start, end, from, until)
PHASES = {
    0: [(0.0, 1.0, 3.0)],
    1: [(0.0, 1.0, 2.0)],
    2: [(0.0, 0.45, 1.5), (0.45, 1.0, 0.0)],  # small corpus, one pass only
}


class MixtureStream:
    """Documents of several domains; every domain has its own slice of the vocabulary."""

    def __init__(self, n_domains, vocab, batch_size, seq_len, seed):
        self.n_domains = n_domains
        self.per = vocab // n_domains
        self.batch_size, self.seq_len = batch_size, seq_len
        self.g = torch.Generator().manual_seed(5000 + seed)

    def _weights(self, progress):
        w = []
        for d in range(self.n_domains):
            spans = PHASES.get(d, [(0.0, 1.0, 1.0)])
            w.append(next((x for a, b, x in spans if a <= progress <= b), 0.0))
        return torch.tensor(w)

    def next_batch(self, progress):
        dom = torch.multinomial(self._weights(progress), self.batch_size, replacement=True, generator=self.g)
        start = torch.randint(0, self.per, (self.batch_size, 1), generator=self.g)
        ids = (start + torch.arange(self.seq_len + 1)) % self.per + dom[:, None] * self.per
        return ids, dom[:, None].expand(-1, self.seq_len + 1)
