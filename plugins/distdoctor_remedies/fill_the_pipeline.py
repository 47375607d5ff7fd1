"""Cut batches into more micro-batches, and the model into even stages."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="fill-the-pipeline",
    what="Cut batches into more micro-batches, and the model into even stages.",
    how="""schedule = Schedule1F1B(stage, n_microbatches=4 * stages, loss_fn=loss_fn)
# uneven: move layers from the stage that computes longest to its neighbours""",
    effect="the bubble is (p - 1) / (m + p - 1) of a step: p stages, m micro-batches",
    safety="same gradients; 1F1B keeps the activations of p micro-batches, GPipe those of m",
    source="torch.distributed.pipelining; Huang et al., GPipe, 2019",
)
