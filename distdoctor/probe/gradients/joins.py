"""When a rank has joined: it has no more inputs, and from then on only shadows what the others do (torch's Join)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.join import Join

from distdoctor.probe import sites, wrappers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.recording.trace.events import Joined, place_of

_ENDED = place_of(Joined, "ended")


def install(context: GradientsContext, goes_on: Callable[[], None]) -> None:
    """Hear of every rank that leaves the body of a Join context; `goes_on`: once all ranks have, behind their final broadcast."""
    noted: list[int] = []

    @context.guarded
    def joined(join: Any) -> None:
        if getattr(join, "_enable", True):
            trace = context.trace
            noted[:] = [trace.note(Joined(context.step), site=trace.texts.id(sites.user_site()))]

    @context.guarded
    def ended() -> None:
        for seq in noted:
            context.trace.events.patch(seq, _ENDED, context.step)
        noted.clear()
        goes_on()

    def make(original: Any) -> Any:
        def __exit__(join: Any, *error: Any) -> Any:
            if any(error):
                return original(join, *error)
            joined(join)
            result = original(join, *error)
            ended()
            return result

        return __exit__

    wrappers.lay(Join, "__exit__", make)
