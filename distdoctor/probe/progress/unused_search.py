"""Whether DistributedDataParallel finds what it was told to look for: parameters that a step does not use.

With find_unused_parameters it walks the graph after every forward and reduces, after every backward, a map that says how many
ranks have used each parameter (torch 2.11-2.15). That map lies in host memory for models on the CPU, and is read there; on a
device nobody reads it, because that would wait.
"""

from __future__ import annotations

import weakref
from time import monotonic_ns
from typing import Any

from distdoctor.probe import optimizer_steps, sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.recording.trace.events import UnusedSearch

EACH = 32  # steps that are looked at, one by one; then one in as many
MOST = 8  # wrappers that are followed


class Search:
    """One wrapper that searches. Its event is rewritten: a = steps looked at, b = steps in which some rank left a parameter out,
    c = nanoseconds of all walks; text: its ranks, more: walks."""

    def __init__(self, rank: Rank, wrapper: Any) -> None:
        from torch.distributed import get_process_group_ranks

        assert rank.trace is not None
        self.trace = rank.trace
        self.wrapper = weakref.ref(wrapper)
        self.members = get_process_group_ranks(wrapper.process_group)
        self.site = self.trace.texts.id(sites.user_site())
        self.steps = self.looked = self.left_out = self.walks = self.spent = 0
        self.seq = self.trace.note(self._so_far(), site=self.site)

    def _so_far(self) -> UnusedSearch:
        return UnusedSearch(tuple(self.members), self.walks, self.looked, self.left_out, self.spent)

    def look(self) -> None:
        """An optimizer is about to step."""
        self.steps += 1
        wrapper = self.wrapper()
        if wrapper is None or (self.steps > EACH and self.steps % EACH):
            return
        if wrapper.static_graph:  # told so after it was made: it has ended its search
            return
        used = wrapper.reducer._get_local_used_map()
        if used.device.type != "cpu" or not used.numel():
            return
        self.looked += 1
        self.left_out += int(used.min()) < len(self.members)
        self.trace.note_again(self.seq, self._so_far(), site=self.site)


def install(rank: Rank) -> None:
    """Watch every DistributedDataParallel made from now on that searches. The others cost one look when they are made."""
    from torch.nn.parallel import DistributedDataParallel

    searches: list[Search] = []

    @rank.guarded
    def made(wrapper: Any) -> None:
        static = getattr(wrapper, "static_graph", False)
        if not wrapper.find_unused_parameters or static or len(searches) >= MOST:
            return
        if not searches:
            wrappers.lay(DistributedDataParallel, "_post_forward", walking)
            optimizer_steps.before_each(rank.guarded, stepping)
        searches.append(Search(rank, wrapper))

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        for search in searches:
            search.look()

    def walking(original: Any) -> Any:
        def _post_forward(wrapper: Any, output: Any) -> Any:
            began = monotonic_ns()
            result = original(wrapper, output)
            for search in searches:
                if search.wrapper() is wrapper:
                    search.spent += monotonic_ns() - began
                    search.walks += 1
            return result

        return skipped(_post_forward)

    def constructing(original: Any) -> Any:
        def __init__(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **kwargs)
            made(wrapper)

        return __init__

    wrappers.lay(DistributedDataParallel, "__init__", constructing)
