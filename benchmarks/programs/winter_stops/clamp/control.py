import os


class RunControl:
    """Small file-based switchboard. Operators may also `touch STOP` in the run folder."""

    def __init__(self, folder):
        self.folder = folder
        self.path = os.path.join(folder, "STOP")

    def reset(self):
        os.makedirs(self.folder, exist_ok=True)
        if os.path.exists(self.path):
            os.remove(self.path)

    def request_stop(self, reason):
        with open(self.path, "w") as f:
            f.write(reason)

    def stop_requested(self):
        return os.path.exists(self.path)


class Plateau:
    def __init__(self, patience, min_delta):
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = float("inf"), 0

    def update(self, value):
        if value < self.best - self.min_delta:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience
