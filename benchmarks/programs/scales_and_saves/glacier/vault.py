"""A compressed weight archive that is written beside the training loop.

Layout: 8-byte header length, JSON header, then one xz stream per tensor.
"""
import json
import lzma
import os
import struct
import threading

import torch


class Vault:
    def __init__(self, folder, preset=2):
        self.folder, self.preset = folder, preset
        self.thread = None
        os.makedirs(folder, exist_ok=True)

    def put(self, name, step, tensors):
        """Start writing; returns at once."""
        self.wait()
        tensors = {k: v.detach() for k, v in tensors.items()}
        self.thread = threading.Thread(target=self._write, args=(name, step, tensors))
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def _write(self, name, step, tensors):
        path = os.path.join(self.folder, name)
        blobs, entries = [], []
        for key, t in tensors.items():
            raw = t.contiguous().numpy().tobytes()
            blob = lzma.compress(raw, preset=self.preset)
            entries.append({"key": key, "shape": list(t.shape), "dtype": str(t.dtype)[6:], "size": len(blob)})
            blobs.append(blob)
        head = json.dumps({"step": step, "entries": entries}).encode()
        with open(path + ".tmp", "wb") as f:
            f.write(struct.pack("<Q", len(head)))
            f.write(head)
            f.writelines(blobs)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".tmp", path)


def load(path):
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        out = {}
        for e in head["entries"]:
            raw = bytearray(lzma.decompress(f.read(e["size"])))
            out[e["key"]] = torch.frombuffer(raw, dtype=getattr(torch, e["dtype"])).view(e["shape"])
    return head["step"], out
