"""Faults planted in a rank of a test, to see that a training survives them or that they are told."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from distdoctor.errors import WrongUse

ACTIONS = ("raise", "exit", "kill", "hang", "delay", "skip", "nan", "drift")
_ON_PARAMETERS = ("nan", "drift")


@dataclass(frozen=True)
class Fault:
    """`action` happens in one `rank` at its `number`-th call of `at`: "step" (of any optimizer), or a function of
    torch.distributed by its name ("all_reduce", "barrier", ...), called through that module.

    raise a RuntimeError · exit with code 1 · kill by SIGKILL · hang for good · delay by `seconds` · skip the call · nan: in the
    first gradient · drift: the first parameter is off by a millionth.
    """

    action: str
    rank: int = 1
    at: str = "step"
    number: int = 1
    seconds: float = 1.0
    _calls: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise WrongUse(f"there is no fault {self.action}", way_out=f"There are {', '.join(ACTIONS)}.")
        if self.action == "skip" and self.at == "step":
            raise WrongUse("an optimizer's step cannot be skipped", way_out='Skip a collective: at="all_reduce".')
        if self.action in _ON_PARAMETERS and self.at != "step":
            raise WrongUse(f"{self.action} needs parameters, and {self.at} has none", way_out='Leave at="step".')

        if self.rank < 0 or self.number < 1:
            raise WrongUse(
                f"no fault happens at call {self.number} of rank {self.rank}",
                way_out="Ranks count from 0, calls from 1.",
            )

    @property
    def was_due(self) -> bool:
        """Whether this process has come to the call before which it happens."""
        return len(self._calls) >= self.number

    def is_due(self, rank: int) -> bool:
        self._calls.append(1)
        return rank == self.rank and len(self._calls) == self.number

    def happen(self, optimizer: Any = None) -> None:
        """Does not return where the fault ends or holds up the rank for good."""
        if self.action == "raise":
            raise RuntimeError(f"fault injected in rank {self.rank} at {self.at} {self.number}")
        if self.action == "exit":
            os._exit(1)
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.action == "hang":
            time.sleep(3600)
        if self.action == "delay":
            time.sleep(self.seconds)
        if self.action in _ON_PARAMETERS:
            _change(optimizer, self.action)


def _change(optimizer: Any, action: str) -> None:
    import torch

    parameter = next(p for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    with torch.no_grad():
        if action == "nan":
            parameter.grad.view(-1)[0] = float("nan")
        else:
            parameter.view(-1)[0] += 1e-6 * (1 + parameter.view(-1)[0].abs())


@contextlib.contextmanager
def planted(fault: Fault) -> Iterator[Fault]:
    """The fault happens inside this block, in its rank; that rank is warned where it has not.

    WrongUse: there is no such rank, or no such function.
    """
    import torch.distributed as dist

    if dist.is_initialized() and fault.rank >= dist.get_world_size():
        raise WrongUse(
            f"there is no rank {fault.rank} for the fault {fault.action}",
            way_out=f"Ranks 0-{dist.get_world_size() - 1} run.",
        )
    rank = dist.get_rank() if dist.is_initialized() else -1
    take_out = _at_steps(fault) if fault.at == "step" else _at_calls(fault)
    try:
        yield fault
    finally:
        take_out()
    if rank == fault.rank and not fault.was_due:
        what = "an optimizer" if fault.at == "step" else f"torch.distributed.{fault.at}"
        warnings.warn(
            f"the fault {fault.action} did not happen: rank {rank} has called {what} {len(fault._calls)} times, "
            f"and it was to happen at number {fault.number}",
            stacklevel=2,
        )


def _at_steps(fault: Fault) -> Callable[[], None]:
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if fault.is_due(dist.get_rank()):
            fault.happen(optimizer)

    return register_optimizer_step_pre_hook(before).remove


def _at_calls(fault: Fault) -> Callable[[], None]:
    import torch.distributed as dist

    original = getattr(dist, fault.at, None)
    if not callable(original):
        raise WrongUse(f"torch.distributed has no function {fault.at}", way_out='For example at="all_reduce".')

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if fault.is_due(dist.get_rank()):
            fault.happen()
            if fault.action == "skip":
                return None
        return original(*args, **kwargs)

    setattr(dist, fault.at, faulty)
    return lambda: setattr(dist, fault.at, original)
