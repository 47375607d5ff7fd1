from transformers import TrainerCallback


class TargetLossCallback(TrainerCallback):
    """Ends the run once the logged loss has stayed below the target for `patience` logs."""

    def __init__(self, target, patience=2):
        self.target = target
        self.patience = patience
        self.hits = 0

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" not in (logs or {}):
            return
        loss = float(logs["loss"])
        self.hits = self.hits + 1 if loss < self.target else 0
        if state.is_world_process_zero:
            print(f"[target] step {state.global_step} loss {loss:.4f} hits {self.hits}", flush=True)
        if self.hits >= self.patience:
            control.should_training_stop = True
