"""Count each evaluated sample once."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

LEAVE_PADDING_OUT = Remedy(
    slug="leave-padding-out",
    what="Leave the samples with which the sampler fills up the last round out of the metric, or evaluate on uneven shares.",
    how="""real = len(range(rank, len(dataset), world_size))  # this rank's samples without the padding
outputs, targets = torch.cat(outputs)[:real], torch.cat(targets)[:real]""",
    effect="Each sample counts once.",
    source="torch.utils.data.distributed.DistributedSampler.__iter__",
)
