from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum


class Events(str, Enum):
    STARTED = "started"
    EPOCH_STARTED = "epoch_started"
    ITERATION_COMPLETED = "iteration_completed"
    EPOCH_COMPLETED = "epoch_completed"
    COMPLETED = "completed"


@dataclass
class State:
    epoch: int = 0
    iteration: int = 0
    max_epochs: int = 1
    output: object = None
    metrics: dict = field(default_factory=dict)


class Engine:
    """Runs a step function over data and fires events."""

    def __init__(self, step):
        self._step = step
        self._handlers = defaultdict(list)
        self.should_terminate = False
        self.state = State()

    def on(self, event, every=1):
        def wrap(fn):
            self.add(event, fn, every)
            return fn
        return wrap

    def add(self, event, fn, every=1):
        self._handlers[event].append((fn, every))

    def fire(self, event):
        count = self.state.iteration if event is Events.ITERATION_COMPLETED else self.state.epoch
        for fn, every in self._handlers[event]:
            if every == 1 or count % every == 0:
                fn(self)

    def terminate(self):
        self.should_terminate = True

    def run(self, data, max_epochs=1):
        self.state = State(max_epochs=max_epochs)
        self.should_terminate = False
        self.fire(Events.STARTED)
        while self.state.epoch < max_epochs and not self.should_terminate:
            self.state.epoch += 1
            self.fire(Events.EPOCH_STARTED)
            for batch in data:
                self.state.iteration += 1
                self.state.output = self._step(self, batch)
                self.fire(Events.ITERATION_COMPLETED)
                if self.should_terminate:
                    break
            self.fire(Events.EPOCH_COMPLETED)
        self.fire(Events.COMPLETED)
        return self.state
