"""A model whose forward takes `**kwargs` is believed by Trainer to divide its loss itself."""

from __future__ import annotations

from distdoctor.diagnosis.source.trainer_models import forward_that_takes_the_count

MODEL = """from transformers import Trainer

class Tagger(PreTrainedModel):
    def forward(self, ids, labels=None, **kwargs):
        return {"loss": loss(self.net(ids), labels)}
"""


def line(text: str) -> int:
    return forward_that_takes_the_count({"train.py": text}).line


def test_a_forward_that_swallows_the_count_is_found() -> None:
    assert line(MODEL) == 4


def test_a_model_that_uses_the_count_or_says_no_is_none() -> None:
    assert line(MODEL.replace("labels=None,", "labels=None, num_items_in_batch=None,")) == 0
    assert line(MODEL.replace("    def forward", "    accepts_loss_kwargs = False\n    def forward")) == 0


def test_a_model_without_kwargs_or_without_trainer_is_none() -> None:
    assert line(MODEL.replace(", **kwargs", "")) == 0
    assert line(MODEL.replace("import Trainer", "import AutoModel")) == 0
