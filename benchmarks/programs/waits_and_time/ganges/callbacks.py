import os
import time

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only


class ThroughputMeter(Callback):
    def __init__(self, every):
        self.every = every
        self.mark = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.mark is None:
            self.mark = (time.perf_counter(), trainer.global_step)
        elif trainer.global_step % self.every == 0:
            t, s = self.mark
            now = time.perf_counter()
            rank_zero_info(f"step {trainer.global_step}: {(trainer.global_step - s) / (now - t):.1f} it/s")
            self.mark = (now, trainer.global_step)


class ConfusionSketch(Callback):
    """Keeps a small text picture of the confusion matrix next to the logs."""

    def __init__(self, classes, every=1):
        self.classes, self.every = classes, every
        self.counts = torch.zeros(classes, classes, dtype=torch.long)

    def on_validation_epoch_start(self, trainer, pl_module):
        self.counts.zero_()

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        flat = outputs["target"] * self.classes + outputs["pred"]
        self.counts += torch.bincount(flat, minlength=self.classes**2).view(self.classes, self.classes)

    def render(self):
        top = max(1, int(self.counts.max()))
        shades = " .:-=+*#%@"
        return "\n".join("".join(shades[int(v) * 9 // top] for v in row) for row in self.counts.tolist())

    @rank_zero_only
    def write(self, trainer):
        folder = os.path.join(trainer.log_dir, "confusion")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"epoch_{trainer.current_epoch}.txt"), "w") as fh:
            fh.write(self.render() + "\n")

    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch % self.every == 0:
            self.write(trainer)
