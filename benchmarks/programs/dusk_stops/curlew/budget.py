import logging
import time

import torch
import torch.distributed as dist
from transformers import TrainerCallback

log = logging.getLogger(__name__)


class TimeBudgetCallback(TrainerCallback):
    """Ends training when the job has used up its share of the queue slot."""

    def __init__(self, seconds, min_steps=10):
        self.seconds = seconds
        self.min_steps = min_steps
        self.started = time.monotonic()

    def _spent(self):
        return time.monotonic() - self.started

    def on_step_end(self, args, state, control, **kwargs):
        used = torch.tensor([self._spent()])
        if dist.is_initialized():
            dist.broadcast(used, src=0)
        if state.global_step >= self.min_steps and used.item() > self.seconds:
            log.info("time budget of %.0f s used at step %d", self.seconds, state.global_step)
            control.should_training_stop = True
        return control
