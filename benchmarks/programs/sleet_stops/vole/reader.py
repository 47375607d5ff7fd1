import json
import queue
import struct
import threading

import numpy as np
import torch

SPECIES = ("blackbird", "robin", "wren", "chiffchaff", "tawny owl", "background")
INDEX = {name: i for i, name in enumerate(SPECIES)}
HEAD = struct.Struct("<II")


def pack(path, clips):
    """clips: iterable of (dict, float16 array)."""
    with open(path, "wb") as f:
        for meta, spec in clips:
            text = json.dumps(meta).encode()
            body = spec.astype(np.float16).tobytes()
            f.write(HEAD.pack(len(text), len(body)))
            f.write(text)
            f.write(body)


def unpack(path):
    with open(path, "rb") as f:
        while head := f.read(HEAD.size):
            n_text, n_body = HEAD.unpack(head)
            meta = json.loads(f.read(n_text))
            spec = np.frombuffer(f.read(n_body), np.float16).reshape(meta["bins"], -1)
            yield meta, spec.astype(np.float32)


def batches(paths, size):
    xs, ys = [], []
    for path in paths:
        for meta, spec in unpack(path):
            xs.append(torch.from_numpy(spec[None]))
            ys.append(INDEX[meta["species"]])
            if len(xs) == size:
                yield torch.stack(xs), torch.tensor(ys)
                xs, ys = [], []


class Readahead:
    """Iterates over ``source`` in a thread, ``depth`` batches ahead of the caller."""

    def __init__(self, source, depth=4):
        self.source = source
        self.ready = queue.Queue(depth)
        self.thread = threading.Thread(target=self._fill, name="readahead", daemon=True)

    def _fill(self):
        for item in self.source:
            self.ready.put(item)
        self.ready.put(None)

    def __iter__(self):
        self.thread.start()
        while (item := self.ready.get()) is not None:
            yield item
