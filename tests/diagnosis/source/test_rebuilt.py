"""What is restored from a checkpoint and made anew afterwards."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.rebuilt import rebuilt_after
from distdoctor.recording.source_line import SourceLine

TRAINER = """class Trainer:
    def __init__(self):
        self.ema = Tracker(self.model)
        self.load()

    def load(self):
        state = torch.load(self.path)
        self.ema.set_state(state["ema"])
        self.loaded()

    def loaded(self):
        {after}
"""
LOAD = SourceLine("/job/train.py", 7, "load")


def test_an_object_that_is_made_anew_after_its_state_was_restored_is_found() -> None:
    found = rebuilt_after({"/job/train.py": TRAINER.format(after="self.ema = Tracker(self.model)")}, LOAD)

    assert (found.line, found.function) == (12, "loaded")


def test_what_the_constructor_makes_and_what_is_only_used_are_none() -> None:
    assert not rebuilt_after({"/job/train.py": TRAINER.format(after="self.ema.update(self.model)")}, LOAD)
    assert not rebuilt_after({"/job/train.py": TRAINER.format(after="self.swa = Tracker(self.model)")}, LOAD)


@pytest.mark.parametrize(("made", "line"), [("self.ema = Tracker(self.model)", 8), ("self.ema = Other(self.model)", 0)])
def test_an_object_that_the_load_itself_makes_once_more_is_found(made: str, line: int) -> None:
    text = TRAINER.format(after="pass").replace('self.ema.set_state(state["ema"])', made)

    assert rebuilt_after({"/job/train.py": text}, LOAD).line == line
