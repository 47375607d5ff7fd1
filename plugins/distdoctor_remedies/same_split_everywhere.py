"""Split the data set alike on all ranks."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SAME_SPLIT_EVERYWHERE = Remedy(
    slug="same-split-everywhere",
    what="Split with a generator that is seeded alike on all ranks, and sort what comes from the file system.",
    how="train, test = random_split(dataset, [0.9, 0.1], generator=torch.Generator().manual_seed(0))",
    effect="No rank trains on what another evaluates; the score is that of unseen samples.",
    safety="changes which samples are trained on; scores before and after do not compare",
    source="torch.utils.data.random_split",
)
