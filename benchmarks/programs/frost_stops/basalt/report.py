import json
import os

from transformers import TrainerCallback


class ReportAndStop(TrainerCallback):
    """Writes the log history and ends the run once the loss no longer improves."""

    def __init__(self, folder, patience=3, min_delta=0.02):
        self.path = os.path.join(folder, "log.jsonl")
        self.patience = patience
        self.min_delta = min_delta
        self.best = float("inf")
        self.stale = 0

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or "loss" not in logs:
            return control
        self._write(state.global_step, logs)
        return self._plateau(logs, control)

    def _write(self, step, logs):
        with open(self.path, "a") as f:
            f.write(json.dumps({"step": step, **{k: v for k, v in logs.items() if isinstance(v, (int, float))}}) + "\n")

    def _plateau(self, logs, control):
        if float(logs["loss"]) < self.best - self.min_delta:
            self.best = float(logs["loss"])
            self.stale = 0
        else:
            self.stale += 1
        if self.stale >= self.patience:
            control.should_training_stop = True
        return control
