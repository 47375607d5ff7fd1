"""For the Trainer of transformers: `Trainer(..., callbacks=[DistdoctorCallback()])`. Does nothing where no recording is made."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from distdoctor.callbacks.open_phase import OpenPhase


class DistdoctorCallback(TrainerCallback):
    """Names evaluation and checkpoint as phases. The Trainer tells when they are over and, by its control, that they are next."""

    def __init__(self) -> None:
        self._phase = OpenPhase()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._next(control.should_evaluate, control.should_save)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._next(control.should_evaluate, control.should_save)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Where the program itself calls `evaluate` or `predict`, nothing else tells that they have begun."""
        self._phase.change("evaluation")

    def on_predict(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any, **more: Any
    ) -> None:
        self._phase.change("")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._next(False, control.should_save)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._phase.change("")

    def _next(self, evaluates: bool, saves: bool) -> None:
        self._phase.change("evaluation" if evaluates else "checkpoint" if saves else "")
