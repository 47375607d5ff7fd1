"""Where gradients come from: each `backward`, the loss that it starts at, and by what that loss was scaled."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.autograd
from torch import Tensor

from distdoctor.probe import sites, wrappers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.non_finite import Origins
from distdoctor.probe.gradients.scalers import Scalers
from distdoctor.probe.gradients.term_weights import is_by_own_weight
from distdoctor.recording.trace.layout import UpdateFlag

FIRST = 16  # backwards of a line whose root is looked at; then one in this many
LINES = 64  # that are told apart
DEEPEST = 6  # operations between `backward` and the loss
_OWN = " own"  # behind a divisor: it is of this micro-batch alone
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}  # at::Reduction (torch 2.15)


class Backwards:
    """Follows the backward passes and keeps the mean of the losses between two steps."""

    def __init__(
        self,
        context: GradientsContext,
        scalers: Scalers,
        origins: Origins,
        begins: Callable[[int, Any], None],
        hooked: Callable[[], bool],
    ) -> None:
        """`begins(number, root)` is called at the beginning of each backward pass. `hooked`: whether somebody hooks saved
        tensors, which looking at them would run."""
        self.context, self.scalers, self.origins, self._begins = context, scalers, origins, begins
        self._hooked = hooked
        self.site = 0
        self.roots = 0
        self._of_line: dict[tuple[str, int] | None, tuple[int, int, int]] = {}  # (backward passes, site, roots)
        self._losses = 0
        self._sum = 0.0
        self._line: tuple[str, int] | None = None  # of the last backward pass
        self._line_since = 0  # the number of the backward pass from which on all were called there
        self._read = (0, 0), ""  # (number, steps before) of the newest backward pass whose root was read, and that root

    def install(self) -> None:
        wrappers.listen(torch.autograd, "backward", before=self.context.guarded(self.begun))

    def flags(self, after: int) -> int:
        """What is to say about the backward passes after number `after`."""
        return int(UpdateFlag.ONE_LINE) if self._line_since <= after + 1 else 0

    def mean_loss(self) -> float:
        """The mean of the losses since it was asked last, NaN when none could be read without waiting for a device."""
        mean = self._sum / self._losses if self._losses else math.nan
        self._losses, self._sum = 0, 0.0
        return mean

    def begun(self, tensors: Any) -> None:
        """A backward pass begins. One inside another (checkpointing) is a part of that one."""
        if torch._C._current_graph_task_id() != -1:
            return
        if self.context.inside_a_step:
            return  # a closure (LBFGS): the step itself asks for gradients again and again
        self.context.backwards += 1
        count = self.context.backwards
        root = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
        self._begins(count, root)
        frame = sites.user_frame(sys._getframe(1))
        line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        if line != self._line:
            self._line, self._line_since = line, count
        if not isinstance(root, Tensor):
            return
        if root.device.type == "cpu" and root.numel() == 1:
            loss = float(root.detach())
            self._losses += 1
            self._sum += loss
            suspect = self.origins.take_suspect()
            if not math.isfinite(loss) and not self.scalers.at_work:
                self.origins.tell_loss(loss, suspect, root)
        passes, self.site, self.roots = self._of_line.get(line, (0, self.site, self.roots))
        passes += 1
        if passes <= FIRST or passes % FIRST == 0:
            texts = self.context.trace.texts
            self.site = texts.id(sites.user_site())
            roots = "pipeline" if _is_pipeline(sys._getframe(1)) else roots_of(root, weighs=not self._hooked())
            beside = count - 1, self.context.updates  # the micro-batch before it of this very window
            self.roots = texts.id(with_own_counts(roots, self._read[1] if self._read[0] == beside else ""))
            self._read = (count, self.context.updates), roots
        if len(self._of_line) < LINES or line in self._of_line:
            self._of_line[line] = passes, self.site, self.roots


def _is_pipeline(frame: FrameType | None) -> bool:
    """Whether a schedule of torch's pipelining calls: it divides gradients by the number of micro-batches itself."""
    for _ in range(12):
        if frame is None:
            return False
        if "/distributed/pipelining/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


# Operations whose every output is the input of the same number, as it is: what DistributedDataParallel lays around a model's
# outputs where it searches for unused parameters (torch 2.11-2.15), conversions, and changes of shape.
_HANDING_ON = ("_DDPSinkBackward", "ToCopyBackward", "CloneBackward", "ViewBackward", "SqueezeBackward", "UnsqueezeBackward",
               "ReshapeAliasBackward", "AliasBackward")  # fmt: skip


def roots_of(root: Tensor, *, weighs: bool = True) -> str:
    """`div 4;nll_loss mean`: what was done to the loss between its own computation and `backward`, outermost first.

    `div 56 own;Sum`: a sum is divided by what its terms weigh. Not asked for unless `weighs`.
    """
    words: list[str] = []
    node, output = root.grad_fn, root.output_nr
    for _ in range(DEEPEST):
        if node is None:
            break
        name = type(node).__name__
        if name.startswith(_HANDING_ON) and output < len(node.next_functions):
            node, output = node.next_functions[output]
            continue
        factor = _factor(node, name)
        if factor is None:
            if words and weighs and is_by_own_weight(words[-1], node):
                words[-1] += _OWN
            words.append(_loss_words(node, name))
            break
        words.append(factor)
        node, output = node.next_functions[0] if node.next_functions else (None, 0)
    return ";".join(words)


def with_own_counts(roots: str, before: str) -> str:
    """`div 4 own;nll_loss sum` where the backward pass before had `div 7;nll_loss sum`: this divides by its own number."""
    now, then = ([word.removesuffix(_OWN) for word in words.split(";")] for words in (roots, before))
    if len(now) != len(then) or now[-1] != then[-1]:
        return roots
    told = zip(roots.split(";"), now, then, strict=True)
    return ";".join(
        f"{one}{_OWN}" if one != other and one[:4] == other[:4] == "div " else as_it_is for as_it_is, one, other in told
    )


def _factor(node: Any, name: str) -> str | None:
    """`div 4`, `mul scale` (by something on a device), None: this node is the loss itself."""
    if not name.startswith(("DivBackward", "MulBackward")):
        return None
    word = name[:3].lower()
    other = getattr(node, "_saved_other", None)
    if not isinstance(other, Tensor):
        return None if other is None else f"{word} {other}"
    if other.numel() != 1 or other.device.type != "cpu":
        return f"{word} tensor"
    return f"{word} {float(other):g}"


def _loss_words(node: Any, name: str) -> str:
    reduction = getattr(node, "_saved_reduction", None)
    if name.startswith("MeanBackward"):
        return "mean"
    plain = name.rstrip("0123456789").removesuffix("Backward")
    return f"{plain} {_REDUCTIONS[reduction]}" if reduction in _REDUCTIONS else plain
