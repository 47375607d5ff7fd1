"""What each rank of an imagined job does, written once for all ranks, with faults planted where a test wants them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any, Self

from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import TraceEvent
from distdoctor.recording.trace.layout import ROOTED
from distdoctor.recording.trace.layout import Op as OpKind
from distdoctor.testing.actions import Action, Programs, Survivors
from distdoctor.testing.rank_trace import SECOND, shape_text
from distdoctor.testing.simulation import play

Ranks = int | Iterable[int]


def ranks_of(ranks: Ranks) -> tuple[int, ...]:
    return (ranks,) if isinstance(ranks, int) else tuple(ranks)


class Script(Programs):
    """The programs of all ranks. Methods add an action to every rank (or to `only`) and return the script itself.

    `skipped_by`, `instead`, `moved_before_last` change the action that was added last. What the ranks make of it is decided by
    `film`: calls block as they do in torch, whoever waits for something that never comes waits for ever.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self._lines: dict[tuple[Any, ...], str] = {}
        self._last: tuple[int, ...] = ()

    # --- what the job is -------------------------------------------------------------------------------------------------

    def group(self, name: str, ranks: Iterable[int], *, backend: str = "gloo") -> Self:
        """A process group besides the default group `0`; it exists from the start."""
        self.groups[name] = (tuple(ranks), backend)
        return self

    def backend(self, name: str) -> Self:
        """The backend of the default group."""
        self.groups["0"] = (self.groups["0"][0], name)
        return self

    def source(self, path: str, text: str) -> Self:
        """The text of a source file, as a reader that finds it would attach it. Relative paths are below `/job`."""
        self.texts[path if path.startswith("/") else f"/job/{path}"] = text
        return self

    def host(self, name: str, ranks: Ranks) -> Self:
        """These ranks run on a machine of their own, with clocks of its own."""
        self.hosts.update(dict.fromkeys(ranks_of(ranks), name))
        return self

    def unrecorded(self, ranks: Ranks) -> Self:
        """No log of these ranks was found."""
        self.silent.update(ranks_of(ranks))
        return self

    # --- what the ranks do -----------------------------------------------------------------------------------------------

    def add(self, kind: str, only: Ranks | None = None, /, **fields: Any) -> Self:
        """Any action, on every rank or on `only`."""
        self._last = tuple(range(self.world_size)) if only is None else ranks_of(only)
        for rank in self._last:
            self.programs[rank].append(Action(kind, fields))
        return self

    def collective(
        self,
        op: str,
        shape: Sequence[int] | str = (1,),
        *,
        group: str = "0",
        site: str | SourceLine = "",
        only: Ranks | None = None,
        root: int | None = None,
        **more: Any,
    ) -> Self:
        """A collective on the members of the group. `more` goes to `TraceBuilder.call` (dtype, reduce_op, asynchronous, ...);
        `caught_after` is for how many seconds a rank waits in it until it catches its timeout and goes on.

        Without a site every kind of call gets a line of its own in `/job/train.py`.
        """
        members = self.groups[group][0]
        ranks = [r for r in (members if only is None else ranks_of(only)) if r in members]
        if root is None:
            root = members[0] if OpKind[op.upper()] in ROOTED else -1
        shape = "" if op in ("barrier", "monitored_barrier") else shape_text(shape)
        site = site or self._line(op, group, shape)
        return self.add("call", ranks, op=op, shape=shape, group=group, site=site, root=root, **more)

    def send(
        self, source: int, target: int, shape: Sequence[int] | str = (1,), *, group: str = "0", **more: Any
    ) -> Self:
        """A send on rank `source` alone."""
        site = more.pop("site", "") or self._line("send", group, source)
        return self.add("call", source, op="send", shape=shape_text(shape), group=group, site=site, root=target, **more)

    def recv(
        self, target: int, source: int, shape: Sequence[int] | str = (1,), *, group: str = "0", **more: Any
    ) -> Self:
        """A receive on rank `target` alone; a negative `source` receives from anybody."""
        site = more.pop("site", "") or self._line("recv", group, target)
        op = "recv" if source >= 0 else "recv_any"
        return self.add("call", target, op=op, shape=shape_text(shape), group=group, site=site, root=source, **more)

    def wait(self, only: Ranks | None = None) -> Self:
        """Wait for every handle that is still open. Leaves no trace in the recording."""
        return self.add("wait", only)

    def step(self, only: Ranks | None = None, *, site: str | SourceLine = "train.py:90 main", epoch: int = -1) -> Self:
        """An optimizer step; what C++ has issued for the gradients has completed before."""
        return self.add("step", only, site=site, epoch=epoch)

    def compute(self, seconds: float, only: Ranks | None = None) -> Self:
        """Work that nobody sees."""
        return self.add("compute", only, nanoseconds=int(seconds * SECOND))

    def note(self, event: TraceEvent, only: Ranks | None = None, **fields: Any) -> Self:
        """One of the rare things; fields as in `TraceBuilder.note`."""
        return self.add("note", only, event=event, **fields)

    def draw(self, only: Ranks | None = None, *, loader: int = 1, **fields: Any) -> Self:
        """A batch from a loader; the first one begins a pass. Fields as in `TraceBuilder.loader_pass`."""
        return self.add("draw", only, loader=loader, **fields)

    def exhausted(self, only: Ranks | None = None, *, loader: int = 1) -> Self:
        """The loader has no more batches: the pass ends."""
        return self.add("exhausted", only, loader=loader)

    def raises(
        self,
        ranks: Ranks,
        words: str = "ValueError: bad value",
        *,
        site: str | SourceLine = "train.py:77 load",
        after: Sequence[str] = (),
    ) -> Self:
        """An exception that nobody catches ends these ranks; `after`: those that were being handled when it was raised."""
        return self.add("raise", ranks, text=words, site=site, after=tuple(after))

    def exits(self, ranks: Ranks, code: int = 0) -> Self:
        """These ranks leave in order."""
        return self.add("exit", ranks, code=code)

    def killed(self, ranks: Ranks, signal: int = 9) -> Self:
        """A signal ends these ranks."""
        return self.add("kill", ranks, signal=signal)

    def stays(self, ranks: Ranks) -> Self:
        """These ranks go no further: they sit in code that is no communication."""
        return self.add("stay", ranks)

    # --- faults ----------------------------------------------------------------------------------------------------------

    def skipped_by(self, ranks: Ranks) -> Self:
        """These ranks leave out the action that was added last."""
        for rank in ranks_of(ranks):
            if rank in self._last:
                self.programs[rank].pop()
        return self

    def instead(self, ranks: Ranks, **changes: Any) -> Self:
        """These ranks do the action that was added last with other fields (`op="broadcast"`, `shape="[3]"`, `root=2`)."""
        for rank in ranks_of(ranks):
            if rank in self._last:
                self.programs[rank][-1] = self.programs[rank][-1].but(**changes)
        return self

    def swapped_by(self, ranks: Ranks) -> Self:
        """These ranks do the two actions that were added last in the other order."""
        for rank in ranks_of(ranks):
            program = self.programs[rank]
            program[-1], program[-2] = program[-2], program[-1]
        return self

    # --- what is left of it ----------------------------------------------------------------------------------------------

    def film(self, rng: random.Random | None = None, *, rendezvous: bool = False, exits: bool = False) -> Any:
        """Play the programs: in turn, or in the random order that `rng` draws. See `simulation.play`."""
        return play(self, rng, rendezvous=rendezvous, exits=exits)

    def live(
        self, *, silent_for: float = 12.0, rng: random.Random | None = None, rendezvous: bool = False
    ) -> Recording:
        """The recording as a watcher reads it, `silent_for` seconds after the last thing that happened. Nobody exits unasked."""
        film = self.film(rng, rendezvous=rendezvous)
        recording: Recording = film.read(film.last_ns + int(silent_for * SECOND))
        return recording

    def finished(self, *, survivors: Survivors = "killed", rng: random.Random | None = None) -> Recording:
        """The recording after the job is over. Ranks that reach the end of their program exit with 0.

        Those that hang are `killed` by the launcher, `fail` because a peer has gone, `time out`, or are `left` (nobody knows).
        """
        film = self.film(rng, exits=True)
        film.end(survivors)
        recording: Recording = film.read(film.last_ns + SECOND, running=False)
        return recording

    def _line(self, *kind: Any) -> str:
        return self._lines.setdefault(kind, f"train.py:{11 + len(self._lines)} train_step")


def recording(ranks: int = 2) -> Script:
    """A script for a job of so many ranks, to be filled with calls and ended with `live()` or `finished()`."""
    return Script(ranks)
