"""The reference training on tensors that hold no data: any strategy and world size in one process, whatever the model's size."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from distdoctor.errors import CouldNotLook
from distdoctor.planning import zeroed_gradients
from distdoctor.planning.allocation_log import Ledger
from distdoctor.planning.fake_ddp import FakeDdp
from distdoctor.planning.memory_timeline import MemoryTimeline
from distdoctor.workloads.factory import imported
from distdoctor.workloads.progress import Progress
from distdoctor.workloads.request import TrainingRequest
from distdoctor.workloads.training import Training

STEPS = 2
"""The first step makes the optimizer's state, the second has it from its beginning."""
SHAPES_OF_DTENSORS = "_propagate_tensor_meta_non_cached"
"""Where DTensor tries an operation on whole tensors to see which shape comes out. A rank holds none of these."""


def trace(request: TrainingRequest, world_size: int, rank: int = 0, *, on_cpu: bool = True) -> MemoryTimeline:
    """What `rank` of `world_size` allocates in training as requested.

    `on_cpu` counts what CPU kernels and gloo allocate on the side. Otherwise the optimizer updates all parameters in one kernel,
    as it does by default on a GPU and not on the CPU; that takes temporary memory.
    """
    if dist.is_initialized():
        raise CouldNotLook(
            "a prediction needs a process group of its own, and this process is in one already",
            way_out="Predict before init_process_group, or in another process.",
        )
    plain = replace(request, backend="gloo", steps=STEPS, epochs=1, evaluate=False, save=None, resume=None, result=None)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    ledger = Ledger(on_cpu=on_cpu)
    training = FakeTraining(replace(plain, drills=(), workers=0), world_size, rank, ledger, foreach=not on_cpu)
    training.train_set  # noqa: B018 - real data, before nothing is real any more
    training.sample = training.train_set[0]
    if zeroed_gradients.PLANT in request.drills:
        zeroed_gradients.plant(training)
    training.join()
    collecting = gc.isenabled()
    gc.disable()  # two traces of one training are the same, event by event
    try:
        with _without_data(mode, ledger):
            imported(request.train)(training)
    finally:
        training.leave()
        if collecting:
            gc.enable()
    return ledger.timeline


class FakeTraining(Training):
    """Trains `STEPS` steps on batches of nothing and tells the ledger which phase it is in."""

    sample: tuple[Any, Any]

    def __init__(
        self, request: TrainingRequest, world_size: int, rank: int, ledger: Ledger, *, foreach: bool = False
    ) -> None:
        super().__init__(request)
        self.rank, self.world_size, self.local_rank = rank, world_size, 0
        self.ledger = ledger
        self._foreach = foreach
        self.on("training_start", lambda _: self._start())
        self.on("step_start", lambda _: self._enter("data"))
        self.on("micro_step_start", lambda _: self._enter("forward"))
        self.on("before_backward", lambda _: self._enter("backward"))
        self.on("after_backward", lambda _: self._label())
        self.on("before_optimizer_step", lambda _: self._enter("optimizer"))
        self.on("after_step", lambda _: self._after_step())

    def join(self) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=self.world_size)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @property
    def steps_per_epoch(self) -> int:
        return STEPS

    def make_model(self) -> nn.Module:
        model = super().make_model()
        self.ledger.label_training(model, None)
        self.ledger.timeline.parameters = sum(parameter.numel() for parameter in model.parameters())
        return model

    def make_sampler(self, dataset: Any, *, shuffle: bool) -> None:
        return None

    def make_loader(
        self, dataset: Any, sampler: Any, *, drop_last: bool, skip: int = 0
    ) -> Iterable[tuple[Tensor, Tensor]]:
        size = self.request.batch_size // self.arrangement.data_ranks // self.request.accumulate
        inputs, targets = (torch.as_tensor(part) for part in self.sample)
        for _ in range(STEPS * self.request.accumulate):
            yield (
                torch.empty((size, *inputs.shape), dtype=inputs.dtype),
                torch.empty((size, *targets.shape), dtype=targets.dtype),
            )

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        # GradScaler.step reads whether a gradient has overflowed, and would leave the step out if a number said so.
        if self.scaler.is_enabled():
            self.scaler.unscale_(optimizer)
        optimizer.step()
        self.scaler.update()

    def _start(self) -> None:
        # ZeroRedundancyOptimizer holds another optimizer, which takes its settings from its groups.
        for group in self.optimizer.param_groups if self._foreach else ():
            group["foreach"] = True
        self.progress = Progress(shown=False, steps=STEPS)
        self._label()
        local = [p.to_local() if isinstance(p, DTensor) else p for p in self.arrangement.module.parameters()]
        self.ledger.timeline.parameter_bytes = sum(parameter.nbytes for parameter in local)

    def _enter(self, phase: str) -> None:
        self.ledger.phase = phase

    def _label(self) -> None:
        self.ledger.label_training(self.arrangement.module, self.optimizer)

    def _after_step(self) -> None:
        self._label()
        if self.step == 0:
            self.ledger.timeline.flops.clear()
            self.ledger.timeline.traffic.clear()

    def train_step(self, micro_batches: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().train_step(micro_batches)
        self._enter("data")


@contextmanager
def _without_data(mode: Any, ledger: Ledger) -> Iterator[None]:
    """Within, tensors have shapes and no data, and DistributedDataParallel is the one that can do with that."""
    from torch.nn import parallel

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(mock.patch.object(parallel, "DistributedDataParallel", FakeDdp))
        # A mesh is a small table of ranks, whose values are read.
        for owner, name in ((device_mesh, "init_device_mesh"), (DeviceMesh, "__init__"), (DeviceMesh, "__getitem__")):
            stack.enter_context(mock.patch.object(owner, name, _with_data(getattr(owner, name))))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _convert))
        # Activation checkpointing keeps the generator's state for each block, 5 KiB on the CPU.
        stack.enter_context(mock.patch.object(torch, "get_rng_state", ledger.counted(torch.get_rng_state)))
        if hasattr(ShardingPropagator, SHAPES_OF_DTENSORS):
            trying = ledger.unseen(getattr(ShardingPropagator, SHAPES_OF_DTENSORS))
            stack.enter_context(mock.patch.object(ShardingPropagator, SHAPES_OF_DTENSORS, trying))
        stack.enter_context(mode)
        stack.enter_context(ledger)
        stack.enter_context(ledger.following_resizes())
        yield


def _with_data(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments, **named)

    return call


def _convert(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """`Module._apply` swaps the insides of tensors, which those without data refuse ("it has weakref associated with it")."""
    converted: dict[Tensor, nn.Parameter] = {}  # a parameter that two modules share stays one
    for part in module.modules() if recurse else [module]:
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter not in converted:
                with torch.no_grad():
                    new = function(parameter)
                same = new is parameter
                converted[parameter] = parameter if same else nn.Parameter(new, parameter.requires_grad)
            if parameter is not None:
                part._parameters[name] = converted[parameter]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = function(buffer)
    return module
