"""Move the work that only one rank does off the path of the others, or give it to all."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="balance-ranks",
    what="Move the work that only one rank does off the path of the others, or give it to all.",
    how=(
        "if rank == 0:\n"
        "    threading.Thread(target=save, args=(copy.deepcopy(state),)).start()  # the others need not wait"
    ),
    effect="saves the seconds per step that the finding names",
    safety="what is saved later must be a copy",
    source="torch.distributed.checkpoint.async_save does this for checkpoints",
)
