"""Call the sharded state_dict (or save) on every rank, and write the file on one."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="state-dict-on-every-rank",
    what="Call the sharded state_dict (or save) on every rank, and write the file on one.",
    how=(
        "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # every rank\n"
        "if rank == 0:\n"
        "    torch.save(state, path)"
    ),
    effect="gathering the shards needs all of them",
    safety="changes no result",
    source="torch.distributed.checkpoint.state_dict.get_model_state_dict; FullyShardedDataParallel.state_dict",
)
