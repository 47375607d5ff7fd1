import logging
import pathlib

import torch

log = logging.getLogger("forecast")


class Callback:
    def step_end(self, run, loss):
        pass

    def epoch_end(self, run, epoch):
        pass


class OutlierReport(Callback):
    """Keeps the batches whose loss stands out, for a look afterwards."""

    def __init__(self, factor=3.0, after=8):
        self.factor = factor
        self.after = after
        self.kept = []

    def step_end(self, run, loss):
        if run.step < self.after or loss <= self.factor * run.window.here:
            return
        self.kept.append((run.step, loss))
        log.info("step %d: loss %.3f against %s", run.step, loss, f"{run.window.here:.3f}")


class Checkpoint(Callback):
    def __init__(self, folder, rank):
        self.folder = pathlib.Path(folder)
        self.rank = rank
        self.best = float("inf")

    def epoch_end(self, run, epoch):
        score = run.window.value
        if score < self.best:
            self.best = score
            if self.rank == 0:
                self.folder.mkdir(parents=True, exist_ok=True)
                torch.save(run.net.state_dict(), self.folder / "best.pt")


class EpochLine(Callback):
    def __init__(self, rank):
        self.rank = rank

    def epoch_end(self, run, epoch):
        mean = run.window.value
        if self.rank == 0:
            log.info("epoch %d done, window mean %.4f", epoch, mean)
