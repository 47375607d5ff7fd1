"""Note where nn.DataParallel is made, and over which devices."""

from __future__ import annotations

from typing import Any

from distdoctor.probe import sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.recording.trace.events import DataParallelMade

MOST = 8  # wrappers that are noted


def install(rank: Rank) -> None:
    """Watch every DataParallel that is made from now on."""
    from torch.nn.parallel import DataParallel

    made = 0

    @rank.guarded
    def note(wrapper: Any) -> None:
        nonlocal made
        if rank.trace is None or made >= MOST:
            return
        made += 1
        devices = [str(device) for device in getattr(wrapper, "device_ids", None) or ()]
        trace = rank.trace
        trace.note(DataParallelMade(tuple(devices)), site=trace.texts.id(sites.user_site()))

    def constructing(original: Any) -> Any:
        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            note(wrapper)

        return __init__

    wrappers.lay(DataParallel, "__init__", constructing)
