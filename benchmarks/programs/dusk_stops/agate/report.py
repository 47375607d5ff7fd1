import json
import os

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only


class BestReport(Callback):
    """Writes report.json whenever the validation accuracy improves."""

    def __init__(self, folder, start_epoch=0):
        self.path = os.path.join(folder, "report.json")
        self.start_epoch = start_epoch
        self.best = -1.0

    def on_validation_end(self, trainer, pl_module):
        acc = float(trainer.callback_metrics.get("val_acc", 0.0))
        if acc > self.best and trainer.current_epoch >= self.start_epoch:
            self.best = acc
            self.write(trainer, acc, pl_module.per_class())

    @rank_zero_only
    def write(self, trainer, acc, recall):
        content = {"epoch": trainer.current_epoch, "accuracy": acc, "recall": recall}
        with open(self.path, "w") as f:
            json.dump(content, f, indent=1)
        trainer.print(f"epoch {trainer.current_epoch}: new best {acc:.4f}")
