import torch


class MixedBatches:
    """Instruction batches; each one is either image+text or text only."""

    def __init__(self, rank, world, batch_size, seq_len, vocab, text_only_ratio, seed):
        self.rank, self.world = rank, world
        self.bs, self.seq, self.vocab = batch_size, seq_len, vocab
        self.ratio = text_only_ratio
        self.seed = seed

    def epoch(self, index, steps):
        g = torch.Generator().manual_seed(self.seed * 1000 + index * self.world + self.rank)
        for _ in range(steps):
            start = torch.randint(0, self.vocab, (self.bs, 1), generator=g)
            step = torch.randint(1, 7, (self.bs, 1), generator=g)
            ids = (start + step * torch.arange(self.seq + 1)) % self.vocab
            batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:], "pixel_values": None}
            if torch.rand((), generator=g).item() >= self.ratio:
                batch["pixel_values"] = torch.randn(self.bs, 3, 32, 32, generator=g)
            yield batch
