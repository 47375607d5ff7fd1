import json
import os
import threading
import time

import torch
import torch.distributed as dist


class AsyncSaver:
    """Writes each rank's shard in the background so that training does not wait for the file system.

    After all shards are on disk rank 0 publishes the step in `latest.json`.
    """

    def __init__(self, folder, throughput_mb=4.0):
        self.folder = folder
        self.throughput = throughput_mb * 1e6
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.group = dist.group.WORLD
        self.thread = None
        os.makedirs(folder, exist_ok=True)

    def _write(self, step, payload):
        path = os.path.join(self.folder, f"step{step:06d}-rank{self.rank}.pt")
        torch.save(payload, path + ".tmp")
        size = os.path.getsize(path + ".tmp")
        time.sleep(size / self.throughput)  # network volume
        os.replace(path + ".tmp", path)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([size]), group=self.group)
        if self.rank == 0:
            meta = {"step": step, "bytes": [int(s) for s in sizes]}
            with open(os.path.join(self.folder, "latest.json"), "w") as f:
                json.dump(meta, f)

    def save(self, step, model, optimizer, shard):
        self.wait()
        names = [n for i, (n, _) in enumerate(model.named_parameters()) if i % self.world == self.rank]
        params = dict(model.named_parameters())
        payload = {"step": step, "data": shard,
                   "model": {n: params[n].detach().clone() for n in names},
                   "optim": {n: {k: v.clone() for k, v in optimizer.state[params[n]].items()} for n in names}}
        self.thread = threading.Thread(target=self._write, args=(step, payload), daemon=True)
        self.thread.start()

    def wait(self):
        if self.thread is not None:
            self.thread.join()
            self.thread = None
