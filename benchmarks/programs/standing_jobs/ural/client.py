import pickle
import socket
import struct

import numpy as np
import torch
from torch.utils.data import IterableDataset

from server import read_exact


class RemoteBatches(IterableDataset):
    """Asks the node's sample server for whole batches over one kept-alive connection."""

    def __init__(self, port, n, batch, rank, world, seed):
        self.port, self.n, self.batch = port, n, batch
        self.rank, self.world, self.seed = rank, world, seed
        self.epoch = 0
        self._sock = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.n // (self.world * self.batch)

    def connection(self):
        if self._sock is None:
            self._sock = socket.create_connection(("127.0.0.1", self.port))
        return self._sock

    def ask(self, idx):
        body = idx.astype(np.int64).tobytes()
        sock = self.connection()
        sock.sendall(struct.pack("!I", len(body)) + body)
        size = struct.unpack("!I", read_exact(sock, 4))[0]
        x, y = pickle.loads(read_exact(sock, size))
        return torch.from_numpy(x.copy()), torch.from_numpy(y.copy())

    def __iter__(self):
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.n)
        mine = order[self.rank:: self.world]
        for i in range(len(self)):
            yield self.ask(mine[i * self.batch: (i + 1) * self.batch])

    def close(self):
        if self._sock is not None:
            self._sock.close()
            self._sock = None
