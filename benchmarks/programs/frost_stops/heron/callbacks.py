import json
import os
import time

import torch
from lightning.pytorch.callbacks import Callback


class History(Callback):
    """Appends one json row per epoch to ``history.jsonl``."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "history.jsonl")

    def on_train_epoch_end(self, trainer, pl_module):
        if not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics
        row = {k: round(float(v), 5) for k, v in metrics.items()}
        row["epoch"] = trainer.current_epoch
        with open(self.path, "a") as f:
            f.write(json.dumps(row) + "\n")


class ClassBalance(Callback):
    """Counts how often every class was drawn, over all processes."""

    def __init__(self, classes):
        self.classes = classes
        self.started = 0.0

    def on_train_epoch_start(self, trainer, pl_module):
        self.counts = torch.zeros(self.classes)
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.counts += torch.bincount(batch[1], minlength=self.classes).float()

    def on_train_epoch_end(self, trainer, pl_module):
        table = pl_module.all_gather(self.counts)
        if trainer.is_global_zero:
            share = table.sum(0) / table.sum()
            spent = time.perf_counter() - self.started
            print(f"epoch {trainer.current_epoch} {spent:.2f}s classes {[round(float(s), 3) for s in share]}", flush=True)
