import copy
import json
import os
import queue
import shutil
import threading
import time

import torch
import torch.distributed as dist


def to_host(obj):
    if torch.is_tensor(obj):
        return obj.detach().clone()
    if isinstance(obj, dict):
        return {k: to_host(v) for k, v in obj.items()}
    if isinstance(obj, (list, tuple)):
        return type(obj)(to_host(v) for v in obj)
    return copy.deepcopy(obj)


class BackgroundSaver:
    """Writes snapshots from a thread. The thread has a process group of its own, so that its
    barrier is never mixed up with what the training loop sends."""

    def __init__(self, root, keep=2, mbps=6.0):
        self.root, self.keep, self.mbps = root, keep, mbps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.group = dist.new_group(backend="gloo")
        self.jobs = queue.Queue(maxsize=1)
        self.error = None
        self.thread = threading.Thread(target=self._loop, name="saver", daemon=True)
        self.thread.start()

    def submit(self, step, model, optimizer):
        if self.error is not None:
            raise RuntimeError("saver failed") from self.error
        names = [n for n, _ in model.named_parameters()]
        mine = {n for i, n in enumerate(names) if i % self.world == self.rank}
        full = optimizer.state_dict()
        part = {
            "model": {n: v for n, v in to_host(model.state_dict()).items() if n in mine},
            "opt": {n: to_host(full["state"][i]) for i, n in enumerate(names) if n in mine and i in full["state"]},
            "step": step,
        }
        self.jobs.put((step, part))

    def _write(self, step, part):
        tmp = os.path.join(self.root, f".step-{step:06d}")
        os.makedirs(tmp, exist_ok=True)
        path = os.path.join(tmp, f"part-{self.rank}.pt")
        torch.save(part, path)
        with open(path, "rb") as f:
            os.fsync(f.fileno())
        time.sleep(os.path.getsize(path) / (self.mbps * 2 ** 20))    # shared storage is rate limited
        dist.barrier(group=self.group)
        if self.rank == 0:
            final = os.path.join(self.root, f"step-{step:06d}")
            os.rename(tmp, final)
            with open(os.path.join(self.root, "latest.tmp"), "w") as f:
                json.dump({"step": step, "parts": self.world}, f)
            os.replace(os.path.join(self.root, "latest.tmp"), os.path.join(self.root, "latest"))
            for old in sorted(d for d in os.listdir(self.root) if d.startswith("step-"))[:-self.keep]:
                shutil.rmtree(os.path.join(self.root, old))

    def _loop(self):
        while True:
            job = self.jobs.get()
            if job is None:
                return
            try:
                self._write(*job)
            except Exception as e:
                self.error = e
                return

    def close(self):
        self.jobs.put(None)
        self.thread.join()
        if self.error is not None:
            raise self.error


def load_latest(root):
    with open(os.path.join(root, "latest")) as f:
        head = json.load(f)
    merged = {"model": {}, "opt": {}}
    for r in range(head["parts"]):
        part = torch.load(os.path.join(root, f"step-{head['step']:06d}", f"part-{r}.pt"))
        assert part["step"] == head["step"]
        merged["model"].update(part["model"])
        merged["opt"].update(part["opt"])
    return head["step"], merged
