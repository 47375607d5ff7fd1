class Curriculum:
    """Raises the quality bar from phase to phase."""

    def __init__(self, start, step):
        self.start, self.step = start, step

    def bar(self, phase):
        return self.start + self.step * phase

    def select(self, pages, phase):
        return [p for p in pages if p.quality >= self.bar(phase)]
