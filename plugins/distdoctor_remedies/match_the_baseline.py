"""Find where a strategy's gradients leave those of one process."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

MATCH_THE_BASELINE = Remedy(
    slug="match-the-baseline",
    what="Correct the factor where it arises, or follow the first layer that differs; then compare again.",
    how="""distdoctor check-grads --strategy ddp --model mylab.nets:small --against single
# 2 = ranks:        divide after all_reduce(SUM), once
# 4 = micro-steps:  loss / accumulate before backward
# 1/2, 1/4:         one division too many
# no factor:        the same command with --precision fp32, then on another machine""",
    effect="The strategy trains with the gradients of the whole batch.",
    safety="a learning rate that was tuned with the wrong factor has to be tuned again",
    source="`distdoctor compare` shows the loss of strategies side by side",
)
