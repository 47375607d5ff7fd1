"""Only one rank asks for the full state dict of a sharded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distdoctor.offers import Drill

if TYPE_CHECKING:
    from distdoctor.workloads.training import Training

PARTIAL_STATE_DICT = Drill(
    slug="partial-state-dict",
    code="DD125",
    summary="only rank 0 gathers the full state dict, in step 3",
    expect="DD125: only rank 0 gathers the shards of the state dict",
    plant="distdoctor_drills.hang.partial_state_dict:plant",
    ranks=(0,),
    strategies=("fsdp", "hybrid"),
)


def plant(training: Training) -> None:
    """Rank 0 saves, as it did before the model was sharded."""
    # not above: it takes half a second, and whoever asks for the list of drills would wait for it
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    def save(training: Training) -> None:
        if training.step == 3 and training.rank == 0:
            get_model_state_dict(training.arrangement.model, options=StateDictOptions(full_state_dict=True))

    training.on("after_step", save)
