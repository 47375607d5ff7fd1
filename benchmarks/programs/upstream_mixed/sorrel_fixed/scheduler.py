import math


class ParamScheduler:
    """Learning rate by the number of samples seen: linear warm-up, cosine decay."""

    def __init__(self, optimizer, max_lr, min_lr, warmup, decay):
        self.optimizer = optimizer
        self.max_lr, self.min_lr = max_lr, min_lr
        self.warmup, self.decay = warmup, decay
        self.num_samples = 0
        self.step(0)

    def get_lr(self):
        if self.num_samples < self.warmup:
            return self.max_lr * self.num_samples / self.warmup
        share = min(1.0, (self.num_samples - self.warmup) / (self.decay - self.warmup))
        return self.min_lr + 0.5 * (self.max_lr - self.min_lr) * (1 + math.cos(math.pi * share))

    def step(self, increment):
        self.num_samples += increment
        for group in self.optimizer.param_groups:
            group["lr"] = self.get_lr()

    def state_dict(self):
        return {"max_lr": self.max_lr, "min_lr": self.min_lr, "warmup": self.warmup, "decay": self.decay,
                "num_samples": self.num_samples}

    def load_state_dict(self, state):
        self.max_lr, self.min_lr = state["max_lr"], state["min_lr"]
        self.warmup, self.decay = state["warmup"], state["decay"]
        self.num_samples = 0
        self.step(increment=state["num_samples"])
