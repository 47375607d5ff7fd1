"""How much memory, arithmetic and traffic a training will need, before it runs and without the machine that it is meant for.

The training is gone through once with tensors that hold no data (`fake_training`, which alone imports torch's fake tensors); this
module says what came of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from distdoctor.errors import CouldNotLook, DoctorError
from distdoctor.planning.memory_timeline import MemoryTimeline, Peak, ScaledTimeline
from distdoctor.workloads.request import TrainingRequest

NOT_PREDICTED = "If the model does not fit the data, give its own by --data; else measure it by `distdoctor run`."
SETUP = ("setup",)


@dataclass(frozen=True)
class Prediction:
    """What one rank needs. `peak` is that of the training steps, `setup_bytes` that of making and wrapping the model before."""

    peak: Peak
    setup_bytes: int
    total_bytes: int
    """The highest sum of what device and host hold, setup included: what a training on the CPU takes."""
    flops: int
    """Floating point operations of one step on this rank, forward and backward."""
    recomputed_flops: int
    """Those among them that activation checkpointing does a second time."""
    parameter_bytes: int
    """That this rank keeps, on the device or in host memory."""
    sent_bytes: int
    """What this rank sends in one step, with ring algorithms."""


class Predictor:
    """Predicts one way of training at any batch size, tracing no more often than it must.

    `device` is `cpu` (torch's CPU kernels and gloo, to the byte) or `cuda` (the allocator rounds, the optimizer updates all
    parameters in one kernel; workspaces of libraries, the context and NCCL's buffers are not counted).
    """

    def __init__(
        self,
        request: TrainingRequest,
        world_size: int,
        *,
        device: str = "cpu",
        shares: int | None = None,
        like: Predictor | None = None,
    ) -> None:
        self.request = request
        self.world_size = world_size
        self.device = device
        self.unit = (world_size if shares is None else shares) * request.accumulate
        """The smallest batch: one sample per micro-step and rank that reads its own."""
        self._traces: dict[int, MemoryTimeline] = like._traces if like is not None else {}
        self._scaled: ScaledTimeline | None = None
        self._tried = False
        self._first = 0  # the batch of the timeline that is scaled

    def at(self, batch_size: int) -> Prediction:
        """The prediction for this global batch.

        CouldNotLook: this model or strategy cannot be gone through without data, and why.
        """
        scaled = self._scaling()
        if scaled is None:
            timeline = self._trace(batch_size)
            return self._said(timeline, timeline.peak(**self._manner, without=SETUP), timeline.peak().bytes, 1.0)
        factor = batch_size / self._first
        total = scaled.peak(batch_size).bytes
        return self._said(scaled.timeline, scaled.peak(batch_size, **self._manner, without=SETUP), total, factor)

    def exactly(self, batch_size: int) -> Prediction:
        """The same from a trace of its own, where the batch is the only one asked for."""
        timeline = self._trace(batch_size)
        return self._said(timeline, timeline.peak(**self._manner, without=SETUP), timeline.peak().bytes, 1.0)

    def largest(self, budget: int, *, most: int = 1 << 20) -> int:
        """The largest global batch whose peak is within `budget` bytes, a multiple of `unit`; 0 where none is."""
        low, high = 0, max(1, most // self.unit)
        while low < high:  # the peak never falls when the batch grows
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.at(middle * self.unit).peak.bytes <= budget else (low, middle - 1)
        return low * self.unit

    @property
    def parameters(self) -> int:
        """How many parameters the whole model has, sharded or not."""
        return next(iter(self._traces.values())).parameters

    @property
    def _manner(self) -> dict[str, bool]:
        return {"offloaded": self.request.offload, "rounded": self.device == "cuda"}

    def _scaling(self) -> ScaledTimeline | None:
        if not self._tried:
            self._tried = True
            # What was traced already serves again. With one sample, kernels may take other ways: then two and three.
            known = sorted(self._traces)[:1]
            for first in (*known, 2 * self.unit):
                batches = (first, first + self.unit)
                self._scaled = ScaledTimeline.between(self._trace(batches[0]), self._trace(batches[1]), batches)
                self._first = first
                if self._scaled is not None:
                    break
        return self._scaled

    def _trace(self, batch_size: int) -> MemoryTimeline:
        if batch_size not in self._traces:
            self._traces[batch_size] = traced(
                replace(self.request, batch_size=batch_size), self.world_size, device=self.device
            )
        return self._traces[batch_size]

    def _said(self, timeline: MemoryTimeline, peak: Peak, total: int, factor: float) -> Prediction:
        forward, backward = timeline.flops.get("forward", 0), timeline.flops.get("backward", 0)
        again = max(0, backward - 2 * forward) if self.request.checkpoint_activations else 0
        return Prediction(
            peak=peak,
            setup_bytes=max((size for size in _running(timeline, "setup")), default=0),
            total_bytes=total,
            flops=int((forward + backward) * factor),
            recomputed_flops=int(again * factor),
            parameter_bytes=timeline.parameter_bytes,
            sent_bytes=sent_bytes(timeline.traffic, self.world_size),
        )


def predict(request: TrainingRequest, world_size: int, *, device: str = "cpu") -> Prediction:
    """What rank 0 of `world_size` needs to train as requested. See `Predictor`."""
    return Predictor(request, world_size, device=device).exactly(request.batch_size)


def traced(request: TrainingRequest, world_size: int, *, device: str = "cpu", rank: int = 0) -> MemoryTimeline:
    """What `rank` allocates in two steps.

    CouldNotLook: it cannot be gone through without data, and why; WrongUse as for a real training.
    """
    from distdoctor.planning.fake_training import trace

    try:
        with _silent(
            logging.getLogger("torch._subclasses.fake_tensor")
        ):  # it logs a traceback of what is raised anyway
            return trace(request, world_size, rank, on_cpu=device == "cpu")
    except DoctorError:
        raise
    except Exception as error:  # the model is the user's, and fake tensors refuse what depends on values
        reason = str(error).strip().partition("\n")[0]
        raise CouldNotLook(
            f"{request.strategy} with {request.model} cannot be predicted: {type(error).__name__}: {reason}",
            way_out=NOT_PREDICTED,
        ) from error


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def sent_bytes(traffic: Mapping[str, int], world_size: int) -> int:
    """Bytes that one rank sends for these collectives by ring algorithms (Thakur et al. 2005); an all-reduce goes round twice."""
    around = (world_size - 1) / world_size
    return int(
        sum(
            size * (2 * around if "reduce" in name and "scatter" not in name else around)
            for name, size in traffic.items()
        )
    )


def _running(timeline: MemoryTimeline, phase: str) -> list[int]:
    held, found = 0, []
    for delta, name in zip(timeline.deltas, timeline.phases, strict=True):
        held += delta
        if name == phase:
            found.append(held)
    return found
