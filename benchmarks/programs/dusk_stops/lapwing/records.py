"""Minimal record container: label byte, 4 byte checksum, 3x32x32 pixels."""
import struct
import zlib

import numpy as np
import torch

PIXELS = 3 * 32 * 32
SIZE = 5 + PIXELS


def write_shards(root, n_shards, per_shard):
    for s in range(n_shards):
        rng = np.random.default_rng(100 + s)
        protos = np.random.default_rng(1).integers(0, 255, (10, PIXELS))
        with open(f"{root}/shard-{s:03d}.rec", "wb") as f:
            for i in range(per_shard):
                y = int(rng.integers(10))
                px = np.clip(protos[y] * 0.5 + rng.integers(0, 128, PIXELS), 0, 255).astype(np.uint8).tobytes()
                crc = zlib.crc32(px)
                if s == 1 and i == 500:
                    px = px[:1200] + bytes(PIXELS - 1200)  # upload was cut here
                f.write(struct.pack("<BI", y, crc) + px)


class ShardReader:
    def __init__(self, path, batch_size):
        with open(path, "rb") as f:
            self.blob = f.read()
        self.batch_size = batch_size
        self.n = len(self.blob) // SIZE

    def __len__(self):
        return self.n // self.batch_size

    def order(self, epoch):
        return torch.randperm(self.n, generator=torch.Generator().manual_seed(epoch)).split(self.batch_size)[:len(self)]

    def decode(self, i):
        rec = self.blob[i * SIZE:(i + 1) * SIZE]
        y, crc = struct.unpack("<BI", rec[:5])
        if zlib.crc32(rec[5:]) != crc:
            raise ValueError(f"checksum mismatch in record {i}")
        x = np.frombuffer(rec[5:], np.uint8).reshape(3, 32, 32).astype(np.float32)
        return torch.from_numpy(x / 127.5 - 1), y

    def load(self, idx):
        xs, ys = zip(*(self.decode(i) for i in idx.tolist()))
        return torch.stack(xs), torch.tensor(ys)
