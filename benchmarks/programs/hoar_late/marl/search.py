import math
from dataclasses import dataclass, field


@dataclass
class Trial:
    number: int
    lr: float
    width: int
    state: str = "waiting"
    value: float = math.inf
    curve: list = field(default_factory=list)


class Study:
    def __init__(self, lrs, widths):
        self.trials = [Trial(i, lr, w) for i, (lr, w) in enumerate((lr, w) for lr in lrs for w in widths)]

    def tell(self, trial, value, curve):
        trial.curve = curve
        if math.isfinite(value):
            trial.state, trial.value = "complete", value
        else:
            trial.state = "fail"

    @property
    def best(self):
        done = [t for t in self.trials if t.state == "complete"]
        return min(done, key=lambda t: t.value)
