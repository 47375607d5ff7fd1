"""Call DistributedDataParallel itself, not the module inside."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

CALL_THE_WRAPPER = Remedy(
    slug="call-the-wrapper",
    what="Call the wrapped model itself in training: its forward arms the reduction of gradients.",
    how="""loss = criterion(model(inputs), targets)    # not model.module(inputs)
# A method other than forward: reach it through forward.
class Net(nn.Module):
    def forward(self, inputs, task="classify"):
        return getattr(self, task)(inputs)""",
    effect="Gradients are averaged in backward; all replicas take the same step.",
    safety="changes the training from this step on: it becomes the one that was meant",
    source="torch.nn.parallel.DistributedDataParallel",
)
