"""A remote table of measurements. Reads can fail for a moment, or for good."""
import torch


class ReadFailed(Exception):
    pass


class RemoteTable:
    def __init__(self, chunks, rows, columns, rank, seed=0):
        self.chunks, self.rows, self.columns = chunks, rows, columns
        self.rank, self.seed = rank, seed
        self.weights = torch.randn(columns, generator=torch.Generator().manual_seed(99))
        self.tries = {}

    def read(self, chunk):
        seen = self.tries[chunk] = self.tries.get(chunk, 0) + 1
        if chunk % 17 == 4 and seen < 3:
            raise ReadFailed(f"chunk {chunk}: connection reset")
        if chunk == 31 and self.rank == 1:
            raise ReadFailed(f"chunk {chunk}: checksum mismatch")
        gen = torch.Generator().manual_seed((self.seed * 100_000 + chunk) * 64 + self.rank)
        x = torch.randn(self.rows, self.columns, generator=gen)
        y = torch.sin(x @ self.weights / 3) + 0.05 * torch.randn(self.rows, generator=gen)
        return x, y
