class DynamicLossScaler:
    def __init__(self, init_scale=2.0 ** 16, growth_interval=20, factor=2.0, min_scale=1.0):
        self.scale = init_scale
        self.growth_interval = growth_interval
        self.factor = factor
        self.min_scale = min_scale
        self.good_steps = 0
        self.skipped = 0

    def update(self, overflow):
        if overflow:
            self.scale = max(self.scale / self.factor, self.min_scale)
            self.good_steps = 0
            self.skipped += 1
            return
        self.good_steps += 1
        if self.good_steps % self.growth_interval == 0:
            self.scale *= self.factor
