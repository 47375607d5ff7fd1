"""Give the collective tensors of one size on every rank."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="same-shape",
    what="Give the collective tensors of one size on every rank.",
    how=(
        "size = torch.tensor([x.numel()])\n"
        "dist.all_reduce(size, op=dist.ReduceOp.MAX)\n"
        "x = torch.nn.functional.pad(x.flatten(), (0, int(size) - x.numel()))"
    ),
    effect="one small all_reduce more per call with sizes that vary",
    safety="padding must be neutral for what is computed (zeros for a sum) and cut off afterwards",
    source="torch.distributed.all_reduce, all_gather; all_to_all_single takes sizes per rank",
)
