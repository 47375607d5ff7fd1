import copy

import torch
import torch.distributed as dist

from engine import Events


class RunningMean:
    """Mean of (value, weight) outputs over an evaluation, over all processes."""

    def __init__(self, name, transform):
        self.name, self.transform = name, transform

    def attach(self, engine):
        engine.add(Events.STARTED, self.reset)
        engine.add(Events.ITERATION_COMPLETED, self.update)
        engine.add(Events.COMPLETED, self.compute)

    def reset(self, engine):
        self.acc = torch.zeros(2, dtype=torch.float64)

    def update(self, engine):
        value, weight = self.transform(engine.state.output)
        self.acc += torch.tensor([value * weight, weight], dtype=torch.float64)

    def compute(self, engine):
        dist.all_reduce(self.acc)
        engine.state.metrics[self.name] = (self.acc[0] / self.acc[1]).item()


class EarlyStopping:
    def __init__(self, trainer, metric, patience, min_delta=0.0):
        self.trainer, self.metric = trainer, metric
        self.patience, self.min_delta = patience, min_delta
        self.best, self.bad = None, 0

    def __call__(self, evaluator):
        value = evaluator.state.metrics[self.metric]
        if self.best is None or value < self.best - self.min_delta:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
            if self.bad >= self.patience:
                print(f"no progress for {self.bad} evaluations, stopping", flush=True)
                self.trainer.terminate()


class BestKeeper:
    def __init__(self, model, metric, path):
        self.model, self.metric, self.path = model, metric, path
        self.best = None
        self.weights = None

    def __call__(self, evaluator):
        value = evaluator.state.metrics[self.metric]
        if self.best is None or value < self.best:
            self.best = value
            self.weights = copy.deepcopy(self.model.state_dict())
            torch.save({"model": self.weights, self.metric: value}, self.path)
