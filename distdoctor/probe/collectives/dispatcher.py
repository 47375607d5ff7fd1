"""Collectives on torch before 2.14, where process groups have no hooks: a thin kernel over every `c10d::` operator.

The dispatcher sees what hooks see: calls from Python and from C++ (DDP's reducer) alike. Each of our kernels notes the call and
hands it on to the device's kernel, whose result and exceptions pass through untouched. Costs about 16 us a call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.library

from distdoctor.probe.collectives.callers import waiting_backward
from distdoctor.probe.collectives.stream import BROADCAST, REDUCING, SIZED_BY_OUTPUT, CollectivesStream
from distdoctor.recording.trace.layout import Op

KEY = "BackendSelect"  # asked for every operator, above all devices; c10d has no kernel of its own there
_kept: list[torch.library.Library] = []  # the kernels live as long as their Library


@dataclass(frozen=True)
class Signature:
    """Where an operator's schema has its arguments (torch 2.11-2.13, csrc/distributed/c10d/Ops.cpp). -1: it has none."""

    op: Op
    inputs: int
    outputs: int = -1
    group: int = 1
    root: int = -1
    tag: int = -1
    asynchronous: int = -1  # absent or left at its default: True


OPERATORS = {
    "allreduce_": Signature(Op.ALL_REDUCE, 0, asynchronous=4),
    "allreduce_coalesced_": Signature(Op.ALL_REDUCE_COALESCED, 0, asynchronous=3),
    "broadcast_": Signature(Op.BROADCAST, 0, root=2, asynchronous=4),
    "reduce_": Signature(Op.REDUCE, 0, root=3, asynchronous=5),
    "allgather_": Signature(Op.ALL_GATHER, 1, 0, group=2, asynchronous=3),
    "allgather_coalesced_": Signature(Op.ALL_GATHER_COALESCED, 1, 0, group=2, asynchronous=3),
    "_allgather_base_": Signature(Op.ALL_GATHER_INTO_TENSOR, 1, 0, group=2, asynchronous=3),
    "allgather_into_tensor_coalesced_": Signature(Op.ALL_GATHER_COALESCED, 1, 0, group=2, asynchronous=3),
    "reduce_scatter_": Signature(Op.REDUCE_SCATTER, 1, 0, group=2, asynchronous=4),
    "_reduce_scatter_base_": Signature(Op.REDUCE_SCATTER_TENSOR, 1, 0, group=2, asynchronous=4),
    "reduce_scatter_tensor_coalesced_": Signature(Op.REDUCE_SCATTER_COALESCED, 1, 0, group=2, asynchronous=4),
    "alltoall_": Signature(Op.ALL_TO_ALL, 1, 0, group=2, asynchronous=3),
    "alltoall_base_": Signature(Op.ALL_TO_ALL_SINGLE, 1, 0, group=2, asynchronous=5),
    "gather_": Signature(Op.GATHER, 1, 0, group=2, root=3, asynchronous=4),
    "scatter_": Signature(Op.SCATTER, 1, 0, group=2, root=3, asynchronous=4),
    "barrier": Signature(Op.BARRIER, -1, asynchronous=3),
    "send": Signature(Op.SEND, 0, root=2, tag=3),
    "recv_": Signature(Op.RECV, -1, 0, root=2, tag=3),
    "recv_any_source_": Signature(Op.RECV_ANY, -1, 0, tag=2),
}


def listen(stream: CollectivesStream) -> None:
    """Lay our kernels over torch's, for every operator that this torch has."""
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _kept.append(library)
    for name, signature in OPERATORS.items():
        operator = getattr(torch.ops.c10d, name, None)
        if operator is not None:
            ours = _kernel(stream, signature, operator.default)
            library.impl(name, ours, KEY, with_keyset=True)  # type: ignore[no-untyped-call]


def _kernel(stream: CollectivesStream, signature: Signature, operator: Any) -> Callable[..., Any]:
    op = int(signature.op)
    sized = signature.outputs if op in SIZED_BY_OUTPUT else signature.inputs

    below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))

    @stream.rank.guarded
    def note(arguments: tuple[Any, ...]) -> None:
        pg = torch.distributed.ProcessGroup.unbox(arguments[signature.group])
        group = stream.groups.get(pg.group_name)
        if group is None:
            return
        if not group.ranks:
            group.resolve(stream.trace)
        try:
            inner: FrameType | None = sys._getframe(3)
        except ValueError:  # a thread of C++
            inner = waiting_backward()
        way = stream.codes.way(inner)
        root = _argument(arguments, signature.root, -1)
        if 0 <= root < len(group.ranks):
            root = group.ranks[root]
        is_async = way.asynchronous(bool(_argument(arguments, signature.asynchronous, True)))
        tensors = _flat(arguments, sized)
        if (
            op == BROADCAST
            and way.by_user
            and len(tensors) == 1
            and _argument(arguments, signature.root, -1) == pg.rank()
        ):
            stream.sent_again.look(tensors[0], way.site)
        reduce_op = way.reduce_op(inner) if op in REDUCING else 0
        stream.note(group, op, tensors, root, is_async, way, inner, reduce_op)

    def kernel(keys: Any, *arguments: Any) -> Any:
        note(arguments)
        # redispatch gives the GIL away while C++ is at work. It has to: gloo's own thread takes the GIL to drop a tensor that
        # Python has seen, and holds the lock then that the next operation waits for.
        return operator.redispatch(keys & below, *arguments)

    return kernel


def _argument(arguments: tuple[Any, ...], at: int, otherwise: Any) -> Any:
    """The argument at a place of the schema; trailing defaults are not handed to kernels."""
    return arguments[at] if 0 <= at < len(arguments) else otherwise


def _flat(arguments: tuple[Any, ...], at: int) -> list[torch.Tensor]:
    """The tensors of one argument, which is a tensor, a list, or a list of lists."""
    value = _argument(arguments, at, [])
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in (item if isinstance(item, list) else [item])]
