"""When a rank has joined: it has no more inputs, and from then on only shadows what the others do (torch's Join)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.algorithms.join import Join

from distdoctor.probe import sites, wrappers
from distdoctor.recording.trace.events import Joined

if TYPE_CHECKING:
    from distdoctor.probe.gradients.stream import GradientsStream


def install(stream: GradientsStream) -> None:
    """Hear of every rank that leaves the body of a Join context."""

    @stream.guarded
    def joined(context: Any) -> None:
        if getattr(context, "_enable", True):
            trace = stream.trace
            trace.note(Joined(stream.step), site=trace.texts.id(sites.user_site()))

    def make(original: Any) -> Any:
        def __exit__(context: Any, *error: Any) -> Any:
            if not any(error):
                joined(context)
            return original(context, *error)

        return __exit__

    wrappers.lay(Join, "__exit__", make)
