"""What a kernel allocates besides its results and frees again before it returns: no tensor without data shows it.

Measured with the profiler's memory events on torch 2.15, CPU with oneDNN and gloo. Kernels of a GPU have workspaces of
their own, which are not modelled: they are part of the headroom that a budget needs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
SCRATCH_16_BIT = 2
"""oneDNN sums the gradient of a 16-bit weight in fp32: twice the weight."""
PLAIN_CHANNELS = 8
"""Inputs whose channels are no multiple of this are read where they lie; others are first copied into oneDNN's layout."""


def of(func: Any, args: Any, out: Any) -> tuple[int, int]:
    """(bytes held before the results are there, bytes held besides the results at the end)."""
    if func is aten.convolution.default:
        return _convolution(args[0], args[1], out)
    if func is aten.convolution_backward.default:
        return _convolution_backward(args[0], args[1], args[2], args[-1])
    # gloo gathers into a flat copy of the output, and reduces a copy of the input.
    if func is torch.ops.c10d._allgather_base_.default:
        return args[0].nbytes, 0
    if func is torch.ops.c10d._reduce_scatter_base_.default:
        return args[1].nbytes, 0
    return 0, 0


BLOCK_ROWS, BLOCK_COLUMNS = 256, 64
"""Of a product, that oneDNN computes at a time, in fp32."""


def of_product(func: Any, args: Any) -> int:
    """Bytes that oneDNN takes for a moment for a product of bf16 matrices, where the CPU multiplies them by itself.

    A block of the second factor, one of sums in fp32, and of a transposed first factor a block of that, on one thread (3.13 on a
    CPU with avx512_bf16). Right to the byte for what a forward does; for the gradients of weights, right up to some 100 KiB.
    """
    if func not in (aten.mm.default, aten.addmm.default) or not _multiplies_bf16():
        return 0
    left, right = args[-2:]
    if left.dtype != torch.bfloat16 or not (left.numel() and right.numel()):
        return 0
    (rows, inner), columns = left.shape, right.shape[1]
    depth = _up(inner if inner <= 512 else 512 if inner <= 1024 else 1024, 32)
    high, wide = min(rows, BLOCK_ROWS), min(BLOCK_COLUMNS, _up(columns, 16))
    size = 1024 + 2 * depth * BLOCK_COLUMNS + 4 * high * wide
    transposed = left.stride(0) == 1 and rows > 1 and inner > 1
    return int(size + (2 * high * depth + 128 if transposed else 0))


@functools.cache
def _multiplies_bf16() -> bool:
    """By avx512_bf16; CPUs with AMX cut matrices in another way, and others leave such products to torch's own loops."""
    bf16, amx = (getattr(torch.cpu, f"_is_{name}_supported", bool) for name in ("avx512_bf16", "amx_tile"))
    return bool(torch._C._has_mkldnn and bf16() and not amx())


def _up(number: int, to: int) -> int:
    return -(-number // to) * to


def _convolution(inputs: Tensor, weight: Tensor, outputs: Tensor) -> tuple[int, int]:
    return _copied(inputs) + weight.nbytes + outputs.nbytes, outputs.nbytes


def _convolution_backward(gradient: Tensor, inputs: Tensor, weight: Tensor, mask: Sequence[bool]) -> tuple[int, int]:
    scratch = SCRATCH_16_BIT * weight.nbytes if weight.element_size() == 2 else 0
    # First the gradient of the input, which is then copied out of oneDNN's layout and once more; after that the weight's.
    of_input = 3 * inputs.nbytes if mask[0] else 0
    of_weight = _copied(inputs) + inputs.nbytes + gradient.nbytes + weight.nbytes + scratch
    return max(of_input, of_weight), weight.nbytes


def _copied(inputs: Tensor) -> int:
    return inputs.nbytes if inputs.shape[1] % PLAIN_CHANNELS == 0 else 0
