import math


class EarlyStopping:
    """Tracks a monitored quantity and tells when it has stopped improving."""

    def __init__(self, monitor="val_loss", patience=3, min_delta=0.0):
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.best = math.inf
        self.wait = 0
        self.best_epoch = -1

    def step(self, epoch, logs):
        value = logs[self.monitor]
        if value < self.best - self.min_delta:
            self.best = value
            self.best_epoch = epoch
            self.wait = 0
        else:
            self.wait += 1
        return self.wait >= self.patience


class History:
    def __init__(self):
        self.rows = []

    def append(self, epoch, logs):
        self.rows.append({"epoch": epoch, **logs})

    def last(self):
        return self.rows[-1] if self.rows else {}
