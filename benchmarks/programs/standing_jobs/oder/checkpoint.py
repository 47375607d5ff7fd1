"""Sharded checkpoints written behind the training loop."""
import io
import json
import logging
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("ckpt")


class ShardWriter:
    """Every rank keeps a slice of the weights; the first one also keeps the optimizer."""

    def __init__(self, folder, mb_per_s=0.5):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.rate = mb_per_s * 2**20
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._thread = None
        self._error = None

    def snapshot(self, model, opt, step):
        names = sorted(model.state_dict())
        mine = names[self.rank:: self.world]
        state = {n: model.state_dict()[n].detach().clone() for n in mine}
        extra = None
        if self.rank == 0:
            extra = {k: [t.clone() for t in v.values() if torch.is_tensor(t)]
                     for k, v in opt.state_dict()["state"].items()}
        return {"step": step, "shard": state, "optimizer": extra}

    def save(self, model, opt, step):
        self.wait()
        payload = self.snapshot(model, opt, step)
        self._thread = threading.Thread(target=self._run, args=(payload,), name=f"ckpt-{step}")
        self._thread.start()

    def _run(self, payload):
        try:
            path = self._write(payload)
            self._commit(payload["step"], path)
        except Exception as exc:
            self._error = exc

    def _write(self, payload):
        buf = io.BytesIO()
        torch.save(payload, buf)
        data = buf.getvalue()
        path = self.folder / f"step{payload['step']}-{self.rank}.pt"
        block = 1 << 16
        with open(path, "wb") as fh:
            for at in range(0, len(data), block):
                fh.write(data[at: at + block])
                time.sleep(block / self.rate)
        return path

    def _commit(self, step, path):
        shards = [None] * self.world
        dist.all_gather_object(shards, {"file": path.name, "bytes": path.stat().st_size})
        if self.rank == 0:
            index = {"step": step, "shards": shards}
            (self.folder / "index.json").write_text(json.dumps(index))
            log.info("checkpoint %d committed: %s", step, [s["bytes"] for s in shards])

    def wait(self):
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
