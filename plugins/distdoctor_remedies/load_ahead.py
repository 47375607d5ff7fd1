"""Let worker processes make the batches before they are asked for."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="load-ahead",
    what="Let worker processes make the batches before they are asked for.",
    how="DataLoader(dataset, ..., num_workers=4, persistent_workers=True, prefetch_factor=4, pin_memory=True)",
    effect="at most the time that the finding names, once workers make batches faster than the model takes them",
    safety="randomness inside the data set then comes from the workers' seeds; workers take memory and cores",
    source="torch.utils.data.DataLoader",
)
