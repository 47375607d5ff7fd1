"""Serves samples from the node's fast disk to the ranks of the node."""
import pickle
import socketserver
import struct
import threading

import numpy as np


def read_exact(sock, n):
    out = b""
    while len(out) < n:
        part = sock.recv(n - len(out))
        if not part:
            return None
        out += part
    return out


class Shelf:
    def __init__(self, n, width, classes, seed):
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, classes, size=n)
        means = rng.normal(size=(classes, width))
        self.x = (means[self.y] + rng.normal(size=(n, width))).astype(np.float32)

    def rows(self, idx):
        return self.x[idx], self.y[idx]


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        while True:
            head = read_exact(self.request, 4)
            if head is None:
                return
            body = read_exact(self.request, struct.unpack("!I", head)[0])
            idx = np.frombuffer(body, dtype=np.int64)
            answer = pickle.dumps(self.server.shelf.rows(idx), protocol=5)
            self.request.sendall(struct.pack("!I", len(answer)) + answer)


class SampleServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, shelf):
        super().__init__(("127.0.0.1", 0), Handler)
        self.shelf = shelf
        self.thread = threading.Thread(target=self.serve_forever, daemon=True, name="samples")
        self.thread.start()

    @property
    def port(self):
        return self.server_address[1]
