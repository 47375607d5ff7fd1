"""When to exchange gradients, when to step."""


class StepPlan:
    def __init__(self, accum):
        self.accum = accum

    def syncs(self, index):
        return (index + 1) % self.accum == 0

    def steps(self, count):
        return count % self.accum == 0
