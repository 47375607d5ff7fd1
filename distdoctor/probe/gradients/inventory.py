"""What one optimizer holds: the parameters by name, and the ranks that should hold the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.optim.optimizer import Optimizer

from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.watched import WatchedModel
from distdoctor.probe.tensors.digests import local
from distdoctor.probe.tensors.dtypes import DTYPE_NUMBER
from distdoctor.probe.tensors.module_trees import HeldParameter
from distdoctor.recording.trace.layout import TensorFlag


class Entry(NamedTuple):
    """One parameter on the trace: the number of its record and the text ids of the ranks that should agree on it."""

    seq: int
    agree: int
    grad_agree: int


@dataclass(frozen=True)
class Inventory:
    """The parameters of one optimizer in order. `ids` and `frozen`, their places, tell whether it is still up to date."""

    ids: tuple[int, ...]
    entries: tuple[Entry, ...]
    lanes: tuple[int, ...]
    frozen: tuple[int, ...] = ()

    def still_holds(self, parameters: Sequence[Tensor]) -> bool:
        """Whether it holds these, and none that was frozen is trained by now. What is frozen later is not written down anew:
        a program may freeze and unfreeze in every step."""
        same = tuple(map(id, parameters)) == self.ids
        return same and not any(parameters[place].requires_grad for place in self.frozen)


def take_inventory(
    context: GradientsContext, number: int, optimizer: Optimizer, parameters: Sequence[Tensor]
) -> Inventory:
    """Write down every parameter of an optimizer."""
    names = context.trees.names(parameters)
    wrapped, ignored = context.agreement.by_wrapper(), context.agreement.ignored()
    places = ((at, index) for at, group in enumerate(optimizer.param_groups) for index in range(len(group["params"])))
    said = _said(context, parameters, wrapped)
    context.watched.note(context.trace, said.values())
    agreed = wrapped | {key: (",".join(map(str, one.members)), True) for key, one in said.items()}
    entries = []
    for index, (parameter, (group, within)) in enumerate(zip(parameters, places, strict=False)):
        held = names.get(id(parameter), HeldParameter(f"optimizer {number} group {group} parameter {within}", ""))
        entries.append(_write(context, number, index, group, parameter, held, agreed, ignored))
    lanes = dict.fromkeys(agree for entry in entries for agree in (entry.agree, entry.grad_agree))
    frozen = tuple(place for place, parameter in enumerate(parameters) if not parameter.requires_grad)
    return Inventory(tuple(map(id, parameters)), tuple(entries), tuple(lanes), frozen)


def _said(
    context: GradientsContext, parameters: Sequence[Tensor], wrapped: dict[int, tuple[str, bool]]
) -> dict[int, WatchedModel]:
    """id -> the model whose parameter it is by `distdoctor.watch(model)`, for those of which no wrapper or placement tells."""
    told = context.watched.by_parameter()
    if not told:
        return {}
    silent = (p for p in parameters if id(p) in told and id(p) not in wrapped and not context.agreement.of_placement(p))
    return {id(parameter): told[id(parameter)] for parameter in silent}


def _write(
    context: GradientsContext,
    number: int,
    index: int,
    group: int,
    parameter: Tensor,
    held: HeldParameter,
    wrapped: dict[int, tuple[str, bool]],
    ignored: Collection[int],
) -> Entry:
    trace, agreement = context.trace, context.agreement
    ranks, reduced = wrapped.get(id(parameter), ("", True))
    agree = ranks or agreement.of_placement(parameter)
    grad_agree = ranks or (agreement.of_placement(parameter.grad) if parameter.grad is not None else agree)
    flags = 0 if parameter.requires_grad else TensorFlag.FROZEN
    flags |= TensorFlag.OUTSIDE if not reduced and parameter.requires_grad else 0
    flags |= TensorFlag.IGNORED if id(parameter) in ignored else 0
    flags |= TensorFlag.SHARDED if _is_part(parameter) else 0
    flags |= TensorFlag.CARRIED if context.first_stepped_by.setdefault(parameter, number) != number else 0
    inner, agree_id, grad_agree_id = local(parameter), trace.texts.id(agree), trace.texts.id(grad_agree)
    seq = trace.tensors.write(
        numel=inner.numel(),
        name=trace.texts.id(held.name),
        shape=trace.texts.id(str(list(parameter.shape))),
        agree=agree_id,
        grad_agree=grad_agree_id,
        owner=trace.texts.id(held.owner),
        optimizer=number,
        group=min(group, 0xFFFF),
        dtype=DTYPE_NUMBER.get(inner.dtype, 0),
        flags=flags,
        index=index,
    )
    return Entry(seq, agree_id, grad_agree_id)


def _is_part(parameter: Tensor) -> bool:
    spec = getattr(parameter, "_spec", None)
    return spec is not None and any(placement.is_shard() for placement in spec.placements)
