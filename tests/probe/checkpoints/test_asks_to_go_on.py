"""What a program is called with says whether it goes on from a save."""

from __future__ import annotations

import pytest

from distdoctor.probe.checkpoints.snapshots import _asks_to_go_on


@pytest.mark.parametrize(
    "word",
    [
        "--resume",
        "--resume-from=runs/1.pt",
        "--auto_resume",
        "--init_from=resume",
        "resume",
        "trainer.ckpt_path=last.ckpt",
        "--checkpoint",
        "--continue",
        "--ckpt_path=last.ckpt",
        "--resume-from-checkpoint-dir",
    ],
)
def test_who_goes_on_says_so(word: str) -> None:
    assert _asks_to_go_on(word)


@pytest.mark.parametrize(
    "word",
    [
        "--init-from",
        "checkpoints/pretrain.pt",
        "--ckpt-dir",
        "--ckpt-dir=runs/ckpt",
        "--checkpoint-every=50",
        "resume.pt",
        "--activation-checkpointing",
        "--resume=false",
        "--pretrained=model.ckpt",
        "continual/train.json",
    ],
)
def test_where_saves_are_and_what_begins_from_them_say_nothing(word: str) -> None:
    assert not _asks_to_go_on(word)
