"""Each rank skips a different block of the model, all of the same shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

RANK_DEPENDENT_BRANCH = Drill(
    slug="rank-dependent-branch",
    code="DD210",
    summary="even ranks skip one block, odd ranks another, and gradients are averaged by hand",
    expect="DD210: some ranks used a block's parameters and others did not",
    plant="distdoctor_drills.replicas.rank_dependent_branch:plant",
    ranks=(),
    strategies=("ddp",),
    arguments={"by_hand": True, "steps": 20},
)


def plant(training: Training) -> None:
    """Hand a block's input on in place of its output."""

    def leave_out(training: Training) -> None:
        blocks = list(training.arrangement.module.children())[1:-1]
        block = blocks[-1 - training.rank % 2]

        def hand_on(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
            return inputs[0]

        block.register_forward_hook(hand_on)

    training.on("training_start", leave_out)
