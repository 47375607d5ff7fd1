"""For Lightning: `Trainer(..., callbacks=[DistdoctorCallback()])`. Does nothing where no recording is made."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from distdoctor.callbacks.open_phase import OpenPhase


class DistdoctorCallback(Callback):
    """Names evaluation as a phase. Checkpoints are seen without it: Lightning saves through torch.save."""

    def __init__(self) -> None:
        self._phase = OpenPhase()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._phase.change("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._phase.change("")

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._phase.change("evaluation")

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._phase.change("")

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        self._phase.change("evaluation")

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        self._phase.change("")
