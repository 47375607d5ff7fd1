"""Lightning, accelerate, Trainer, DeepSpeed, timm and recipes like torchtune's, as they come: silent, and equal to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from both_ways import Bare, run_both
from jobs.frameworks import (
    ACCELERATE,
    DEEPSPEED,
    LIGHTNING,
    OTHERS,
    TRANSFORMERS,
    trainer_with_a_loss_of_its_own,
)
from test_torch_algorithms import ABOUT_TIME

pytestmark = pytest.mark.job


@pytest.mark.parametrize(
    "job", [*LIGHTNING, *ACCELERATE, *TRANSFORMERS, *OTHERS, *DEEPSPEED], ids=lambda job: job.__name__
)
def test_a_framework_is_left_alone_and_equal_to_the_last_bit(
    job: Callable[[int, int], str], tmp_path: Path, bare: Bare
) -> None:
    pytest.importorskip(job.__name__.partition("_")[0].replace("trainer", "transformers").replace("sharded", "torch"))

    plain, probed, findings = run_both(job, 2, tmp_path, bare)

    assert probed == plain
    assert [(one.code, one.title) for one in findings if one.code not in ABOUT_TIME] == []


def test_a_loss_that_trainer_leaves_undivided_is_told_where_it_is_handed_on(tmp_path: Path, bare: Bare) -> None:
    pytest.importorskip("transformers")

    plain, probed, findings = run_both(trainer_with_a_loss_of_its_own, 2, tmp_path, bare)

    assert probed == plain
    (finding,) = [one for one in findings if one.code not in ABOUT_TIME]
    assert (finding.code, finding.ranks) == ("DD208", (0, 1))
    assert "4 times too large" in finding.title
    assert (
        "# of this micro-batch alone"
        in Path(finding.place.path).read_text("utf-8").splitlines()[finding.place.line - 1]
    )
