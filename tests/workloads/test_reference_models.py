"""The reference models fit their data, and can be cut into pieces that are the same model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from distdoctor.errors import WrongUse
from distdoctor.workloads import factory
from distdoctor.workloads.blocks import blocks_of, cut, recompute_activations
from distdoctor.workloads.models import convnet, gpt, mlp, torchvision_models
from distdoctor.workloads.shapes import Shapes

IMAGES = Shapes((1, 8, 8), 10)
LINES = Shapes((64,), 256)


def inputs_for(shapes: Shapes) -> torch.Tensor:
    return torch.randn(2, *shapes.inputs) if len(shapes.inputs) > 1 else torch.randint(shapes.classes, (2, 64))


@pytest.mark.parametrize(
    ("make", "shapes", "scores"),
    [
        (mlp.make, IMAGES, (2, 10)),
        (convnet.make, IMAGES, (2, 10)),
        (convnet.make, Shapes((3, 32, 32), 5), (2, 5)),
        (gpt.make, LINES, (2, 64, 256)),
        (torchvision_models.resnet18, IMAGES, (2, 10)),
        (torchvision_models.resnet50, Shapes((3, 40, 40), 7), (2, 7)),
        (torchvision_models.vit_b_16, IMAGES, (2, 10)),
    ],
)
def test_a_model_cut_in_two_computes_what_the_whole_one_does(
    make: Any, shapes: Shapes, scores: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = make(shapes).eval()
    inputs = inputs_for(shapes)
    with torch.no_grad():
        whole = model(inputs)
        first, second = cut(model, 2, purpose="a test")
        assert torch.equal(second(first(inputs)), whole)
    assert whole.shape == scores
    assert {**first.state_dict(), **second.state_dict()}.keys() == model.state_dict().keys()


def test_torchvisions_models_compute_what_torchvision_does() -> None:
    from torchvision.models import resnet18, vit_b_16

    images = torch.randn(2, 3, 32, 32)
    shapes = Shapes((3, 32, 32), 10)
    for ours, theirs in (
        (torchvision_models.resnet18, lambda: resnet18(num_classes=10)),
        (torchvision_models.vit_b_16, lambda: vit_b_16(image_size=32, num_classes=10)),
    ):
        torch.manual_seed(0)
        expected = theirs().eval()
        torch.manual_seed(0)
        model = ours(shapes).eval()
        with torch.no_grad():
            assert torch.equal(model(images), expected(images))


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 8])
def test_pieces_are_about_equally_heavy_and_none_is_empty(parts: int) -> None:
    weights = [sum(p.numel() for p in piece.parameters()) for piece in cut(mlp.make(IMAGES), parts, purpose="a test")]
    block = 2 * 64 * 128 + 128 + 64 + 2 * 64
    assert min(weights) > 0
    assert max(weights) <= -(-sum(weights) // parts) + block


def test_more_pieces_than_blocks_are_refused() -> None:
    with pytest.raises(WrongUse, match="into 9 pieces, but only 8 of its 8 blocks have parameters"):
        cut(mlp.make(IMAGES), 9, purpose="a test")


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.inner.first(inputs))


class OwnInBlocks(Own):
    def blocks(self) -> list[nn.Module]:
        return [self.inner.first, self.second]


def test_the_users_own_model_is_cut_where_it_says() -> None:
    model = OwnInBlocks()
    assert [name for name, _ in blocks_of(model, purpose="a test")] == ["inner.first", "second"]
    first, second = cut(model, 2, purpose="a test")
    inputs = torch.randn(3, 4)
    assert torch.equal(second(first(inputs)), model(inputs))


def test_a_model_that_does_not_say_where_is_not_cut() -> None:
    with pytest.raises(WrongUse, match="Own cannot be cut into blocks, which a test needs") as caught:
        blocks_of(Own(), purpose="a test")
    assert "blocks()" in caught.value.way_out


def test_recomputed_activations_give_the_same_gradients_from_less_memory() -> None:
    def kept_bytes_and_gradients(recompute: bool) -> tuple[int, list[torch.Tensor]]:
        torch.manual_seed(0)
        model = gpt.make(LINES)
        if recompute:
            recompute_activations(model)
        kept = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()
            return tensor

        tokens = torch.randint(256, (2, 64))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(tokens).sum()
        kept_in_forward = kept
        loss.backward()
        return kept_in_forward, [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]

    all_kept, gradients = kept_bytes_and_gradients(recompute=False)
    few_kept, recomputed = kept_bytes_and_gradients(recompute=True)
    assert few_kept < all_kept / 4
    assert all(torch.equal(one, other) for one, other in zip(gradients, recomputed, strict=True))


def no_shapes() -> nn.Module:
    return nn.Linear(2, 2)


def no_model(shapes: Shapes) -> str:
    return "a model"


def test_a_factory_may_ignore_the_shapes_but_must_return_a_module() -> None:
    assert isinstance(factory.make_model(f"{__name__}:no_shapes", IMAGES), nn.Linear)
    with pytest.raises(WrongUse, match="no_model returned str"):
        factory.make_model(f"{__name__}:no_model", IMAGES)
