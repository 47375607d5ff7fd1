"""Build the optimizer when the model has the parameters that will be trained."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

BUILD_THE_OPTIMIZER_LAST = Remedy(
    slug="build-the-optimizer-last",
    what="Build the optimizer after sharding, extending, unfreezing and moving the model.",
    how="""fully_shard(model)                                 # replaces every parameter
optimizer = torch.optim.AdamW(model.parameters())  # takes the new ones
# unfrozen later:
model.body.requires_grad_(True)
optimizer.add_param_group({"params": model.body.parameters()})""",
    effect="Every parameter that gets a gradient is changed by it.",
    safety="a new optimizer starts without momentum; load its state where it matters",
    source="torch.distributed.fsdp.fully_shard; torch.optim.Optimizer.add_param_group",
)
