import functools
import json
import os
import tempfile

import torch.distributed as dist


def rank_zero_only(fn):
    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)
        return None

    return wrapped


class Reporter:
    def __init__(self):
        self.path = os.path.join(tempfile.gettempdir(), f"report-{os.getpid()}.jsonl")
        self.best = 0.0

    @rank_zero_only
    def scalars(self, epoch, **values):
        with open(self.path, "a") as f:
            f.write(json.dumps({"epoch": epoch, **values}) + "\n")
        print(f"epoch {epoch} " + " ".join(f"{k}={v:.4f}" for k, v in values.items()), flush=True)

    def per_class(self, epoch, accuracy, confusion):
        if accuracy <= self.best:
            return
        self.best = accuracy
        cm = confusion.compute()
        self._write_recall(epoch, cm)

    @rank_zero_only
    def _write_recall(self, epoch, cm):
        recall = (cm.diagonal() / cm.sum(1).clamp(min=1)).tolist()
        with open(self.path, "a") as f:
            f.write(json.dumps({"epoch": epoch, "recall": recall}) + "\n")

    @rank_zero_only
    def close(self):
        if os.path.exists(self.path):
            os.remove(self.path)
