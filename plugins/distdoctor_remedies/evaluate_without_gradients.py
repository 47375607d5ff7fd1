"""Switch gradients off around an evaluation."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

EVALUATE_WITHOUT_GRADIENTS = Remedy(
    slug="evaluate-without-gradients",
    what="Evaluate under torch.inference_mode() (or no_grad, where the outputs take part in a graph later).",
    how="""@torch.inference_mode()
def validate(model, loader):
    model.eval()
    ...""",
    effect="Nothing is kept for backward during the evaluation.",
    safety="changes no result; outputs of inference_mode cannot be used in a graph afterwards",
    source="torch.inference_mode, torch.no_grad",
)
