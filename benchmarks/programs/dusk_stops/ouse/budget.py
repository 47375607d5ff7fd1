import logging
import time

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
        if state.global_step >= self.min_steps and self._spent() > self.seconds:
            log.info("time budget of %.0f s used at step %d", self.seconds, state.global_step)
            control.should_training_stop = True
        return control
