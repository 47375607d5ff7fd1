"""Distribution of weights from the learner to the actors through a store of its own."""
import io
import os

import torch
import torch.distributed as dist


class WeightBroker:
    def __init__(self, rank, host="127.0.0.1"):
        port = [0]
        if rank == 0:
            self.store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
            port = [self.store.port]
        dist.broadcast_object_list(port, src=0)
        if rank != 0:
            self.store = dist.TCPStore(host, port[0], is_master=False)
        self.version = 0

    def publish(self, module):
        buf = io.BytesIO()
        torch.save(module.state_dict(), buf)
        self.version += 1
        self.store.set(f"weights/{self.version}", buf.getvalue())
        self.store.set("latest", str(self.version))

    def refresh(self, module):
        latest = int(self.store.get("latest"))
        if latest != self.version:
            blob = self.store.get(f"weights/{latest}")
            module.load_state_dict(torch.load(io.BytesIO(blob), weights_only=True))
            self.version = latest


def resident_mb():
    with open("/proc/self/statm") as fh:
        return int(fh.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20
