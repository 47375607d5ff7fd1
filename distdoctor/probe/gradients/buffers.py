"""Digests of the buffers of whatever an optimizer trains: running statistics, counters, codebooks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import islice

from torch import Tensor, nn

from distdoctor.probe import sites
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.tensors.digests import Digests, Reading, finished_all, kinds_of
from distdoctor.probe.tensors.dtypes import DTYPE_NUMBER
from distdoctor.probe.tensors.module_trees import HeldParameter, buffers_of
from distdoctor.recording.trace.layout import TensorFlag

MOST = 256  # buffers of one optimizer's modules


class Buffers:
    """The buffers of modules that hold what one optimizer trains, or (number 0) of such as nobody trains. Held weakly.

    `prefixes`: what their names begin with, one for each root."""

    def __init__(
        self, context: GradientsContext, number: int, roots: Sequence[nn.Module], prefixes: Sequence[str] = ()
    ) -> None:
        self.context, self.number = context, number
        self._roots = [weakref.ref(root) for root in roots]
        self._prefixes = prefixes or [""] * len(roots)
        self._digests = Digests()
        self._seqs: dict[str, int] = {}
        for kind in {type(one) for root in roots for one in root.modules() if one._buffers}:
            context.trace.texts.id(sites.forward_of(kind))

    def roots(self) -> list[nn.Module]:
        """Those that are still there."""
        return [root for ref in self._roots if (root := ref()) is not None]

    def start(self) -> tuple[Reading, list[int], list[int]] | None:
        """Their digests on the way, the numbers of their records, and their kinds; None when there are no buffers."""
        found = [(self._seq(root, held, buffer), buffer) for root, held, buffer in islice(self._held(), MOST)]
        if not found:
            return None
        tensors = [buffer for _, buffer in found]
        return self._digests.start(tensors)[0], [seq for seq, _ in found], kinds_of(tensors)

    def _held(self) -> Iterator[tuple[nn.Module | None, HeldParameter, Tensor]]:
        for ref, prefix in zip(self._roots, self._prefixes, strict=True):
            root = ref()
            for held, buffer in buffers_of(root) if root is not None else ():
                yield root, held._replace(name=prefix + held.name), buffer

    def write(self, step: int, started: tuple[Reading, list[int], list[int]]) -> None:
        """One row for each, once everything is ready."""
        reading, seqs, kinds = started
        write = self.context.trace.digests.write
        for seq, value in zip(seqs, finished_all(reading, kinds), strict=True):
            write(param=value, step=step, tensor=seq)

    def _seq(self, root: nn.Module | None, held: HeldParameter, buffer: Tensor) -> int:
        known = self._seqs.get(held.name)
        if known is not None:
            return known
        agree, later = self.context.agreement.of_buffers(root) if root is not None else ("", False)
        flags = TensorFlag.BUFFER
        flags |= TensorFlag.NORMALISATION if held.normalisation else 0
        flags |= TensorFlag.LATER if later else 0
        flags |= TensorFlag.PLAIN if root is None else 0
        trace = self.context.trace
        agree_id = trace.texts.id(agree)
        seq: int = trace.tensors.write(
            numel=buffer.numel(),
            name=trace.texts.id(held.name),
            shape=trace.texts.id(str(list(buffer.shape))),
            agree=agree_id,
            grad_agree=agree_id,
            owner=trace.texts.id(held.owner),
            optimizer=self.number,
            dtype=DTYPE_NUMBER.get(buffer.dtype, 0),
            flags=int(flags),
            index=len(self._seqs),
        )
        self._seqs[held.name] = seq
        return seq
