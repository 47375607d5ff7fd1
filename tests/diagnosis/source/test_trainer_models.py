"""A model whose forward takes `**kwargs` is believed by Trainer to divide its loss itself."""

from __future__ import annotations

from distdoctor.diagnosis.source.trainer_models import forward_that_takes_the_count, loss_that_ignores_the_count

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


LOSS = """class Distilled(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ce, kd = both(model, inputs)
        loss = 0.7 * ce + 0.3 * kd
        return (loss, None) if return_outputs else loss
"""


def own(text: str) -> int:
    return loss_that_ignores_the_count({"train.py": text}).line


def test_a_loss_that_is_given_the_count_and_never_reads_it_is_found() -> None:
    assert own(LOSS) == 5


def test_a_loss_that_reads_the_count_hands_it_on_or_is_not_given_it_is_none() -> None:
    assert own(LOSS.replace("0.3 * kd", "0.3 * kd / num_items_in_batch")) == 0
    assert own(LOSS.replace("both(model, inputs)", "super().compute_loss(model, inputs), 0")) == 0
    assert own(LOSS.replace(", num_items_in_batch=None", "")) == 0
    assert own(LOSS.replace("(Trainer)", "(Runner)")) == 0
    assert own(LOSS + "    accepts_loss_kwargs = False\n") == 0
