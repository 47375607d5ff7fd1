"""When a rank has joined: it has no more inputs, and from then on only shadows what the others do (torch's Join)."""

from __future__ import annotations

from typing import Any

from torch.distributed.algorithms.join import Join

from distdoctor.probe import sites, wrappers
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.recording.trace.events import Joined


def install(context: GradientsContext) -> None:
    """Hear of every rank that leaves the body of a Join context."""

    @context.guarded
    def joined(join: Any) -> None:
        if getattr(join, "_enable", True):
            trace = context.trace
            trace.note(Joined(context.step), site=trace.texts.id(sites.user_site()))

    def make(original: Any) -> Any:
        def __exit__(join: Any, *error: Any) -> Any:
            if not any(error):
                joined(join)
            return original(join, *error)

        return __exit__

    wrappers.lay(Join, "__exit__", make)
