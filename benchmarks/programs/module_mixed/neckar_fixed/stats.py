from collections import OrderedDict


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class StatValue:
    """Last value only, for things such as the learning rate."""

    def __init__(self):
        self.val = 0

    def update(self, val, n=1):
        self.val = val


class Stats(OrderedDict):
    def push(self, values, n):
        for key, value in values.items():
            if key not in self:
                self[key] = StatValue() if key.endswith("/lr") else AverageMeter()
            self[key].update(value, n)

    def line(self):
        return " ".join(f"{k} {float(getattr(m, 'avg', m.val)):.4f}" for k, m in self.items())
