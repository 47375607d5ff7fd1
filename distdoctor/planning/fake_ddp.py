"""What DistributedDataParallel allocates and sends, on tensors that hold no data.

Its reducer is C++ that reads and writes the memory of tensors ("data is not allocated yet"), so its book-keeping is done again
here, as torch 2.15's reducer.cpp does it: one bucket for everything in the first backward, then buckets of 1 MiB and 25 MiB in
the order in which gradients were ready; buckets live as long as the wrapper, or from a gradient to the end of backward.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

FIRST_BUCKET_BYTES = 1024 * 1024
"""`dist._DEFAULT_FIRST_BUCKET_BYTES`."""


class FakeDdp(nn.Module):
    """Stands where DistributedDataParallel would."""

    def __init__(
        self,
        module: nn.Module,
        *,
        bucket_cap_mb: float | None = None,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        lazy_bucket_allocation: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        self.module = module
        self.require_backward_grad_sync = True
        self._views = gradient_as_bucket_view
        self._lazy = lazy_bucket_allocation
        self._cap = int((25 if bucket_cap_mb is None else bucket_cap_mb) * 1024 * 1024)
        self._rebuilds = static_graph or not find_unused_parameters
        self._trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        limits = [sys.maxsize] if self._rebuilds else [FIRST_BUCKET_BYTES, self._cap]
        self._ready: list[nn.Parameter] = []
        self._make_buckets(self._trained[::-1], limits)
        for parameter in self._trained:
            parameter.register_post_accumulate_grad_hook(self._reduce)  # type: ignore[no-untyped-call]

    def forward(self, *arguments: Any, **named: Any) -> Any:
        if self.training and self._rebuilds and len(self._ready) == len(self._trained):
            self._rebuilds = False
            self._make_buckets(self._ready, [FIRST_BUCKET_BYTES, self._cap])
        return self.module(*arguments, **named)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = True

    def _make_buckets(self, order: list[nn.Parameter], limits: list[int]) -> None:
        self._members = _assigned(order, limits)
        self._bucket_of = {parameter: number for number, members in enumerate(self._members) for parameter in members}
        self._missing = [len(members) for members in self._members]
        self._buckets: dict[int, Tensor] = {}
        self._views_of: dict[nn.Parameter, Tensor] = {}
        for number in range(0 if self._lazy else len(self._members)):
            self._allocate(number)

    def _allocate(self, number: int) -> None:
        members = self._members[number]
        flat = torch.empty(sum(p.numel() for p in members), dtype=members[0].dtype, device=members[0].device)
        start = 0
        for parameter in members:
            self._views_of[parameter] = flat[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        self._buckets[number] = flat

    def _reduce(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if not self.require_backward_grad_sync:
            return
        number = self._bucket_of[parameter]
        if number not in self._buckets:
            self._allocate(number)
        view = self._views_of[parameter]
        if self._rebuilds:
            self._ready.append(parameter)
        assert parameter.grad is not None
        view.copy_(parameter.grad)
        if self._views:
            parameter.grad = view
        self._missing[number] -= 1
        if self._missing[number] == 0:
            dist.all_reduce(self._buckets[number])
        if not any(self._missing):
            self._missing = [len(members) for members in self._members]
            if self._lazy:
                self._buckets.clear()
                self._views_of.clear()


def _assigned(order: list[nn.Parameter], limits: list[int]) -> list[list[nn.Parameter]]:
    """The parameters in buckets, as `compute_bucket_assignment_by_size` fills them: a bucket closes when it is full."""
    buckets: list[list[nn.Parameter]] = []
    open_buckets: dict[torch.dtype, list[nn.Parameter]] = {}
    closed: dict[torch.dtype, int] = {}
    for parameter in order:
        members = open_buckets.setdefault(parameter.dtype, [])
        members.append(parameter)
        limit = limits[min(closed.get(parameter.dtype, 0), len(limits) - 1)]
        if sum(p.numel() * p.element_size() for p in members) >= limit:
            buckets.append(open_buckets.pop(parameter.dtype))
            closed[parameter.dtype] = closed.get(parameter.dtype, 0) + 1
    return buckets + list(open_buckets.values())
