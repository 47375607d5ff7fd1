from dataclasses import dataclass


@dataclass
class MicroBatchPlan:
    """Few micro-batches while the learning rate warms up, more afterwards."""
    warmup_steps: int = 6
    start: int = 2
    full: int = 4

    def sender(self, step):
        return self.start if step < self.warmup_steps else self.full

    def receiver(self, step):
        return self.start if step < self.warmup_steps else self.full
