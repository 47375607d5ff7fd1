"""Sends weights to a bucket, one object per tensor, off the training loop."""
import io
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch


class Bucket:
    """Stands for the remote store; a round trip takes a few milliseconds."""

    def __init__(self, root, latency=0.004):
        self.root, self.latency = root, latency
        os.makedirs(root, exist_ok=True)

    def put(self, key, body):
        time.sleep(self.latency)
        path = os.path.join(self.root, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".tmp", "wb") as f:
            f.write(body)
        os.replace(path + ".tmp", path)


class Shipper:
    def __init__(self, bucket):
        self.bucket = bucket
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ship")
        self.sent = []

    def ship(self, step, net):
        self.sent.append(self.pool.submit(self._send, step, net.state_dict()))

    def _send(self, step, state):
        for name, tensor in state.items():
            body = io.BytesIO()
            torch.save(tensor, body)
            self.bucket.put(f"step{step:05d}/{name}.pt", body.getvalue())
        index = json.dumps({"step": step, "names": list(state)}).encode()
        self.bucket.put(f"step{step:05d}/index.json", index)
        return step

    def finish(self):
        done = [f.result() for f in self.sent]
        self.pool.shutdown()
        return done
