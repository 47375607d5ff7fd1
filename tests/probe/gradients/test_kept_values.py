"""Where a loss that is not finite comes from, as far as autograd has kept the values; and what must not be accused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from distdoctor.probe.gradients.kept_values import Origin, origin_of


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """Where all four values of a row have one sign, other things are true of it: one run in fifteen."""
    torch.manual_seed(0)


class Net(nn.Module):
    """body, an operation between, head."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.between = nn.Linear(3, 4), nn.Linear(4, 2), between

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.between(self.body(inputs)))
        return scores


def origin(net: nn.Module, inputs: Tensor) -> Origin | None:
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    return origin_of(net(inputs).square().mean(), lambda parameter: (names[id(parameter)], "Linear"))


class Reciprocal(torch.autograd.Function):
    """An operation of the user's own."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs / 0

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> Tensor:
        return gradients[0]


@pytest.mark.parametrize(
    ("between", "what", "name"),
    [
        (lambda hidden: (hidden * 0).log(), "infinity", "log after body (Linear)"),
        (lambda hidden: (hidden * 0).log().unsqueeze(0).squeeze(0), "infinity", "log after body (Linear)"),
        (
            lambda hidden: (hidden * 0).log().mean(1, keepdim=True).expand(-1, 4),
            "infinity",
            "log or mean after body (Linear)",
        ),
        (lambda hidden: (hidden.abs() + 1e4).exp(), "infinity", "abs, add or exp after body (Linear)"),
        (lambda hidden: (hidden - 1e6).sqrt(), "nan", "body (Linear), sub or sqrt"),
        (lambda hidden: (hidden.tanh() - 1e6).sqrt(), "nan", "sub or sqrt after body (Linear)"),
        (lambda hidden: (hidden.relu() * 0).log() + hidden, "nan", "body (Linear), log, add or head (Linear)"),
        (lambda hidden: hidden * 0 / (hidden * 0), "nan", "div after body (Linear)"),
        (lambda hidden: Reciprocal.apply(hidden * 0), "nan", "reciprocal after body (Linear)"),
    ],
)
def test_the_operation_is_named(between: Callable[[Tensor], Tensor], what: str, name: str) -> None:
    assert origin(Net(between), torch.ones(5, 3)) == Origin(what, name)


def test_a_layer_that_overflows_is_named() -> None:
    net = Net(torch.relu)
    net.body.weight.data.fill_(1.0)

    assert origin(net, torch.full((5, 3), 3e38)) == Origin("infinity", "body (Linear)")


def test_a_nan_of_the_batch_is_told_from_one_of_a_layer() -> None:
    assert origin(Net(torch.relu), torch.full((5, 3), math.nan)) == Origin("outside", "body (Linear)")


def test_a_mean_over_a_mask_passes_on_an_infinity_that_is_meant_so() -> None:
    masked = Net(lambda hidden: hidden.masked_fill(hidden == hidden, -math.inf).mean(1, keepdim=True).expand(-1, 4))

    found = origin(masked, torch.ones(5, 3))

    assert found is None or found.what == "nan"


@pytest.mark.parametrize("which", ["body.weight", "head.weight"])
def test_a_weight_that_was_not_finite_before_is_told_as_that(which: str) -> None:
    net = Net(torch.tanh)
    net.get_parameter(which).data[0, 0] = math.nan

    assert origin(net, torch.ones(5, 3)) == Origin("weight", which)


@pytest.mark.parametrize(
    "between",
    [
        lambda hidden: hidden.masked_fill(hidden > 0, -math.inf).softmax(-1),
        lambda hidden: (hidden + torch.tensor([0.0, -math.inf, 0.0, 0.0])).logsumexp(-1, keepdim=True).expand(-1, 4),
        lambda hidden: torch.where(hidden > 0, hidden, -math.inf).exp(),
        lambda hidden: nn.functional.scaled_dot_product_attention(
            hidden[None, None], hidden[None, None], hidden[None, None], attn_mask=torch.full((5, 5), -math.inf).triu(1)
        )[0, 0],
    ],
)
def test_masks_are_no_origin(between: Callable[[Tensor], Tensor]) -> None:
    assert origin(Net(between), torch.ones(5, 3)) is None


def test_a_row_that_is_masked_altogether_is_named_where_it_becomes_nan() -> None:
    net = Net(lambda hidden: hidden.masked_fill(hidden > -math.inf, -math.inf).softmax(-1))

    assert origin(net, torch.ones(5, 3)) == Origin("nan", "body (Linear), maskedfill or softmax")


def test_what_is_recomputed_is_not_asked() -> None:
    calls = []

    def between(hidden: Tensor) -> Tensor:
        calls.append(1)
        return (hidden * 0).log()

    def recomputed(hidden: Tensor) -> Tensor:
        result: Tensor = checkpoint(between, hidden, use_reentrant=False)
        return result

    assert origin(Net(recomputed), torch.ones(5, 3)) is None
    assert len(calls) == 1


def test_a_graph_that_is_gone_is_no_origin() -> None:
    net = Net(torch.log)
    loss = net(torch.zeros(5, 3)).sum()
    loss.backward()

    assert origin_of(loss, lambda parameter: ("", "")) is None


@pytest.mark.parametrize("broken", [True, False])
def test_what_has_lost_its_memory_since_the_forward_is_neither_read_nor_taken_for_finite(broken: bool) -> None:
    """fully_shard frees the gathered parameters after a module's forward; the graph keeps them with their shape."""
    net = Net(torch.sigmoid if broken else torch.log)
    if broken:
        nn.init.constant_(net.body.weight, math.nan)
    loss = net(torch.zeros(5, 3)).sum()
    for parameter in net.parameters():
        parameter.untyped_storage().resize_(0)

    assert origin_of(loss, lambda parameter: ("", "Linear")) == (None if broken else Origin("nan", "log"))
