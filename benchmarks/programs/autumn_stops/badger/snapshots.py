"""Background snapshots. The writer thread talks over a process group of its own."""
import logging
import queue
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

log = logging.getLogger("snapshots")


class SnapshotWriter:
    def __init__(self, root, flush_seconds=0.0):
        self.root = Path(root)
        self.rank = dist.get_rank()
        self.group = dist.new_group(backend="gloo")
        self.flush_seconds = flush_seconds
        self.jobs = queue.Queue(maxsize=2)
        self.error = None
        self.thread = threading.Thread(target=self._loop, name="snapshot-writer")
        self.thread.start()

    def submit(self, step, model, opt):
        state = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.jobs.put((step, state, opt.param_groups[0]["lr"]))

    def _loop(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            if self.error is None:
                try:
                    self._write(*job)
                except Exception as err:  # reported by close()
                    self.error = err

    def _write(self, step, state, lr):
        path = self.root / f"step{step:05d}-rank{self.rank}.pt"
        size = None
        try:
            torch.save({"step": step, "state": state, "lr": lr}, path)
            size = path.stat().st_size
        except (OSError, RuntimeError) as err:
            log.error("snapshot %d on rank %d: %s", step, self.rank, err)
        if self.rank == 0:
            time.sleep(self.flush_seconds)
        sizes = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(sizes, size, group=self.group)
        if None in sizes:
            raise RuntimeError(f"snapshot {step} is incomplete")
        if self.rank == 0:
            (self.root / "LATEST").write_text(f"{step}\n")
            log.info("snapshot %d complete, %d bytes", step, sum(sizes))

    def close(self):
        self.jobs.put(None)
        self.thread.join()
        if self.error is not None:
            raise RuntimeError("snapshot writer failed") from self.error
