"""A step that only makes an optimizer's state is none of the training's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from distdoctor.probe import optimizer_steps


def unguarded(hook: optimizer_steps.Hook) -> optimizer_steps.Hook:
    return hook


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_only_the_steps_of_the_training_are_told(kind: type[torch.optim.Optimizer]) -> None:
    told: list[str] = []
    handles = [
        optimizer_steps.before_each(unguarded, lambda *_: told.append("before")),
        optimizer_steps.after_each(unguarded, lambda *_: told.append("after")),
    ]
    model = torch.nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    try:
        get_optimizer_state_dict(model, optimizer)  # steps, to make the state that it hands out
        assert told == []
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        schedule.step()
        assert told == ["before", "after"]
    finally:
        for handle in handles:
            handle.remove()


def test_what_a_hook_returns_goes_to_torch() -> None:
    seen: list[Any] = []
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = optimizer_steps.before_each(
        unguarded, lambda optimizer, args, kwargs: ((args[0], lambda: seen.append(1) or 1.0), {})
    )
    try:
        optimizer.step()
    finally:
        handle.remove()

    assert seen == [1]
