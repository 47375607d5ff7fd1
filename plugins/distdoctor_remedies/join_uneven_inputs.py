"""Train through inputs of different length with torch's Join."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="join-uneven-inputs",
    what="Give every rank the same number of batches, or wrap the loop in `with model.join():`.",
    how="with model.join():\n    for batch in loader:\n        ...",
    effect="ranks that have run out shadow the collectives of the others",
    safety="join() divides by the ranks that joined at the start unless told otherwise; drop_last=True loses the last samples",
    source="torch.nn.parallel.DistributedDataParallel.join; torch.utils.data.distributed.DistributedSampler(drop_last=True)",
)
