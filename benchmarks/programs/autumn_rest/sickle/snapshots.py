import json
import os
import threading

import torch
import torch.distributed as dist


class Snapshotter:
    """Two preallocated host buffers; one is filled by the trainer while the other is being written."""

    def __init__(self, folder, model, optimizer, group):
        self.folder, self.model, self.optimizer, self.group = folder, model, optimizer, group
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.buffers = [None, None]
        self.turn = 0
        self.thread = None
        self.step = None
        self.error = None

    def _mine(self):
        out = {}
        for i, (name, p) in enumerate(self.model.named_parameters()):
            if i % self.world == self.rank:
                out[name] = {"param": p.data, **{k: v for k, v in self.optimizer.state[p].items() if torch.is_tensor(v)}}
        return out

    def _fill(self):
        live = self._mine()
        buf = self.buffers[self.turn]
        if buf is None:
            buf = self.buffers[self.turn] = {n: {k: torch.empty_like(v) for k, v in d.items()} for n, d in live.items()}
        for name, entry in live.items():
            for key, value in entry.items():
                buf[name][key].copy_(value)
        self.turn ^= 1
        return buf

    def _write(self, step, buf):
        path = os.path.join(self.folder, f"{step}.shard{self.rank}")
        try:
            torch.save(buf, path + ".tmp")
            os.replace(path + ".tmp", path)
        except Exception as e:
            self.error = e

    def finish(self):
        """Joins the write in flight and, once all ranks have theirs, publishes it."""
        if self.thread is None:
            return
        self.thread.join()
        self.thread = None
        if self.error is not None:
            raise self.error
        dist.barrier(group=self.group)
        if self.rank == 0:
            manifest = os.path.join(self.folder, "latest.json")
            with open(manifest + ".tmp", "w") as f:
                json.dump({"step": self.step, "world": self.world}, f)
            os.replace(manifest + ".tmp", manifest)
        dist.barrier(group=self.group)

    def take(self, step):
        self.finish()
        buf = self._fill()
        self.step = step
        self.thread = threading.Thread(target=self._write, args=(step, buf))
        self.thread.start()

    def restore(self):
        with open(os.path.join(self.folder, "latest.json")) as f:
            meta = json.load(f)
        params = dict(self.model.named_parameters())
        for shard in range(meta["world"]):
            for name, entry in torch.load(os.path.join(self.folder, f"{meta['step']}.shard{shard}")).items():
                params[name].data.copy_(entry.pop("param"))
                self.optimizer.state[params[name]] = entry
        return meta["step"]
