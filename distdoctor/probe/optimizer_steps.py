"""The steps of optimizers that train. A step that only makes an optimizer's state, before it is loaded, is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

Hook = Callable[[Any, Any, Any], Any]
Guard = Callable[[Hook], Hook]  # of a stream: what it returns raises nothing

# Functions that step with zero gradients to have the state made: torch.distributed.checkpoint.state_dict (torch 2.11-2.15), and
# DeepSpeed's ZeRO.
_PREPARING = frozenset({"_init_optim_state", "initialize_optimizer_states", "_initialize_optimizer_states"})
_FRAMES = 12  # from a hook up to who steps: torch's wrappers and those of schedulers lie between


def before_each(guarded: Guard, hook: Hook) -> RemovableHandle:
    """Call the hook, guarded, before each step of any optimizer, like torch's global hooks."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    return register_optimizer_step_pre_hook(guarded(_of_trainings(hook)))


def after_each(guarded: Guard, hook: Hook) -> RemovableHandle:
    """Call the hook, guarded, after each step of any optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    return register_optimizer_step_post_hook(guarded(_of_trainings(hook)))


def _of_trainings(hook: Hook) -> Hook:
    @wraps(hook)
    def called(optimizer: Any, args: Any, kwargs: Any) -> Any:
        return None if _prepares() else hook(optimizer, args, kwargs)

    return called


def _prepares() -> bool:
    """Whether the step under way is made by a function that makes the state."""
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame.f_code.co_name in _PREPARING:
            return True
        above = frame.f_back
        if above is None:
            return False
        frame = above
    return False
