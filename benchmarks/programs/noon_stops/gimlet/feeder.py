import queue
import struct
import threading

import torch


class RecordFile:
    """Length-prefixed float records, packed the way the exporter writes them."""

    def __init__(self, rank, count=4000, dim=128, seed=0, cut=0.0002):
        g = torch.Generator().manual_seed(seed + rank)
        self.dim = dim
        self.blobs = []
        for i in range(count):
            phase = torch.rand(1, generator=g) * 6.28
            wave = torch.sin(torch.arange(dim) / 6.0 + phase) + 0.05 * torch.randn(dim, generator=g)
            payload = struct.pack(f"<{dim}f", *wave.tolist())
            if torch.rand(1, generator=g) < cut:
                payload = payload[: 4 * (dim - 38)]
            self.blobs.append(struct.pack("<I", dim) + payload)

    def __len__(self):
        return len(self.blobs)

    def decode(self, i):
        blob = self.blobs[i]
        (n,) = struct.unpack_from("<I", blob)
        return torch.tensor(struct.unpack_from(f"<{n}f", blob, 4))


class BackgroundFeeder:
    """Decodes and batches in a thread so that the loop never waits for it."""

    def __init__(self, records, batch_size, depth=6, seed=0):
        self.records, self.batch_size = records, batch_size
        self.ready = queue.Queue(maxsize=depth)
        self.gen = torch.Generator().manual_seed(seed)
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="feeder")
        self.thread.start()

    def _indices(self):
        while True:
            yield from torch.randperm(len(self.records), generator=self.gen).tolist()

    def _run(self):
        batch = []
        for i in self._indices():
            if self.closing.is_set():
                return
            batch.append(self.records.decode(i))
            if len(batch) == self.batch_size:
                self.ready.put(torch.stack(batch))
                batch = []

    def next(self):
        return self.ready.get()

    def close(self):
        self.closing.set()
        while self.thread.is_alive():
            try:
                self.ready.get(timeout=0.1)
            except queue.Empty:
                pass
        self.thread.join()
