"""The stream of gradients: what every optimizer step found and left behind, as digests that can be compared between ranks.

The first steps are looked at whole, then so few that it costs half a percent of the time: step `k` is looked at when `k` is a
multiple of the present interval, a power of two. So ranks that choose different intervals still look at common steps. With
`ProbeSettings.deep` every step is looked at (every `ProbeSettings.every`-th).

On a device, digests are computed behind the step's own kernels, copied asynchronously, and read when a later step finds them
ready.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from distdoctor.probe import optimizer_steps, sites
from distdoctor.probe.closures import Arguments, after_first_return
from distdoctor.probe.context import Rank
from distdoctor.probe.gradients import joins
from distdoctor.probe.gradients.backwards import Backwards
from distdoctor.probe.gradients.beside import Beside
from distdoctor.probe.gradients.buffers import Buffers
from distdoctor.probe.gradients.called_with import CalledWiths
from distdoctor.probe.gradients.context import GradientsContext
from distdoctor.probe.gradients.copies import Copies, CopyReading
from distdoctor.probe.gradients.detached_gathers import Gathers
from distdoctor.probe.gradients.inputs import Inputs
from distdoctor.probe.gradients.inventory import Inventory, take_inventory
from distdoctor.probe.gradients.modes import Modes
from distdoctor.probe.gradients.non_finite import Origins
from distdoctor.probe.gradients.orphaned_parameters import OrphanWatch
from distdoctor.probe.gradients.reduced_in_place import Reductions
from distdoctor.probe.gradients.rng_state import RngStates
from distdoctor.probe.gradients.sampled_elements import SampledElements
from distdoctor.probe.gradients.sampled_step import GroupDigests, SampledStep
from distdoctor.probe.gradients.scalers import Scalers
from distdoctor.probe.gradients.tracked import Tracked
from distdoctor.probe.gradients.wrapped import WrapperWatch
from distdoctor.probe.gradients.zero_grad import LOOKS, Zeroing
from distdoctor.probe.tensors.digests import Reading, finished_all, kinds_of, norms_of
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.layout import DigestFlag, UpdateFlag, digest_of, extend

FIRST_STATES = 4  # looks that take the optimizer's state along; then every fourth
MOST_OPTIMIZERS = 0xFFFF  # that are told apart: what a 16-bit field can hold
MOST_TENSORS = 3072  # of one optimizer; the rest is not digested

LARGEST_NORM = 3e38  # of what a 32-bit field can hold


class GradientsStream:
    """Writes updates and digests. What torch calls is guarded: trouble ends this stream, and nothing else."""

    def __init__(self, rank: Rank, trace: TraceWriter, deep: bool, every: int) -> None:
        self.context = context = GradientsContext(rank, trace, deep)
        self.trace, self.every = trace, every
        self.scalers = Scalers(context, self._steps_of, self._skipped)
        self.origins = Origins(context, self.scalers)
        self.inputs = Inputs(context, self._looks_at_the_next)
        self.wrappers = WrapperWatch(context, self.origins, self.inputs)
        self.backwards = Backwards(context, self.scalers, self.origins, self._backward_begins, lambda: self.gathers.off)
        self.zeroing = Zeroing(context)
        self.orphans = OrphanWatch(context)
        self.noise = RngStates(context)
        self.gathers = Gathers(context)
        self.called_with = CalledWiths(context)
        self.reductions = Reductions(context, lambda: self.gathers.off)
        self.beside = Beside(context)
        self._tracked: weakref.WeakKeyDictionary[Optimizer, Tracked] = weakref.WeakKeyDictionary()
        self._numbered = 0  # optimizers so far: those that are gone keep their numbers

    def install(self) -> None:
        """Lay every hook and wrapper of this stream."""
        context = self.context
        context.trees.install()
        self.wrappers.install()
        self.backwards.install()
        self.scalers.install()
        self.zeroing.install()
        self.orphans.install()
        self.noise.install()
        self.gathers.install()
        self.called_with.install()
        self.reductions.install()
        self.beside.install()
        joins.install(context, self._go_on_together)
        if context.deep:
            self.origins.install()
        optimizer_steps.before_each(context.guarded, self.before)
        optimizer_steps.after_each(context.guarded, self.after)
        context.rank.on_watched = context.guarded(self._watched)
        context.rank.on_watched()
        context.rank.on_pass = context.guarded(self._loader_begins)

    # -- around a step -------------------------------------------------------------------------------------------------

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Arguments | None:
        """An optimizer is about to step. One that steps inside another's step (ZeRO) is a part of that one."""
        began = time.thread_time()
        context = self.context
        alive = [ref for ref in context.stepping if ref() is not None]
        numbers = [i for i, ref in enumerate(alive) if ref() is optimizer]
        if numbers:  # its last step was left by an exception
            del alive[numbers[0] :]
        context.stepping = [*alive, weakref.ref(optimizer)]
        if len(context.stepping) > 1:
            return None
        tracked = self._tracked.get(optimizer)
        if tracked is None:
            self._numbered = min(self._numbered + 1, MOST_OPTIMIZERS)
            self.inputs.look_for_sharding()
            tracked = self._tracked[optimizer] = Tracked(self._numbered, self.every if context.deep else 0)
        context.write_what_is_ready()
        tracked.begun = False
        tracked.notice_stage(optimizer)
        wanted = tracked.wants(tracked.step + 1) or self.origins.looks_wanted > 0
        tracked.looking = wanted and self._may_look()
        if tracked.looking:
            self._look_before(optimizer, tracked)
        tracked.spent = time.thread_time() - began
        following = after_first_return(args, kwargs, context.guarded(lambda: self._uses(optimizer, tracked)))
        context.in_closure = following is not None
        if following is None:
            self._uses(optimizer, tracked)
        return following

    def _uses(self, optimizer: Optimizer, tracked: Tracked) -> None:
        """The gradients are what the optimizer steps with: its closure, if it has one, has computed them."""
        began = time.thread_time()
        self.context.in_closure = False
        tracked.begun = True
        tracked.step += 1
        self.context.step = max(self.context.step, tracked.step)
        self.context.updates += 1
        if tracked.looking:
            self._look_at_gradients(optimizer, tracked)
            tracked.spent += time.thread_time() - began
        elif tracked.step <= LOOKS and self._is_alone and not _is_traced():
            self._look_whether_zeroed(optimizer, tracked)
        if tracked.spots is not None:
            tracked.spots.write_later(partial(_held, optimizer), tracked.step)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped."""
        stepping = self.context.stepping
        numbers = [i for i, ref in enumerate(stepping) if ref() is optimizer]
        if not numbers:
            return
        del stepping[numbers[0] :]
        tracked = self._tracked.get(optimizer)
        if stepping or tracked is None:
            return
        if not tracked.begun:  # it has not asked its closure
            self._uses(optimizer, tracked)
        began = time.thread_time()
        tracked.leads = self.beside.lead.takes(tracked.number, tracked.step, self.context.updates)
        if tracked.looking:
            self._look_after(optimizer, tracked)
            tracked.spent += time.thread_time() - began + self.inputs.spent
            self.inputs.spent = 0.0
            tracked.afford()
            self.origins.looks_wanted = max(0, self.origins.looks_wanted - 1)
        else:
            self._write_if_new(optimizer, tracked)
        self.wrappers.after_step(optimizer)
        if tracked.leads:
            self.beside.after_step()
        if tracked.copies is not None and tracked.copies.found:
            tracked.copies.after_step(looked_at=_wants_the_next(tracked))
        if tracked.spots is not None:
            tracked.spots.prepare(tracked.step + 1, partial(_held, optimizer))
        tracked.paced()

    def _watched(self) -> None:
        """The user has named a model: what is known of its parameters is written down anew."""
        for wrapper in self.context.watched.wrappers():
            self.wrappers.take_in(wrapper)
        for tracked in self._tracked.values():
            tracked.inventory = None

    def _loader_begins(self) -> None:
        """A loader begins to be read: what is computed until the next step may be an evaluation."""
        for tracked in self._tracked.values():
            if tracked.copies is not None:
                tracked.copies.loader_begins()

    def _go_on_together(self) -> None:
        """All ranks have joined: their next steps are made with one another again."""
        for tracked in self._tracked.values():
            tracked.go_on_together()

    def _steps_of(self, optimizer: Optimizer) -> int:
        """How often this optimizer has stepped."""
        tracked = self._tracked.get(optimizer)
        return tracked.step if tracked is not None else 0

    def _backward_begins(self, count: int, root: Any) -> None:
        """Backward pass number `count` begins, at `root`."""
        self.wrappers.backward_begins()
        self.noise.backward_begins(count, root if not self.gathers.off else None)
        self.gathers.backward_begins(root)
        self.reductions.backward_begins(root)
        for optimizer, tracked in self._tracked.items():
            if tracked.step:
                self.zeroing.look(optimizer, tracked)

    def _skipped(self, optimizer: Optimizer) -> None:
        """A GradScaler has left out a step: what was counted since the step before belongs to it."""
        tracked = self._tracked.get(optimizer)
        if tracked is not None:
            tracked.counted = (self.context.backwards, *self.wrappers.counts(optimizer))

    def _looks_at_the_next(self) -> bool:
        """Whether a step of some optimizer is looked at that may follow now."""
        return self._may_look() and (not self._tracked or any(map(_wants_the_next, list(self._tracked.values()))))

    def _may_look(self) -> bool:
        """Not while somebody watches every operation (fake tensors, FLOP counters) or records a CUDA graph."""
        if _is_traced() or self._is_alone:
            return False
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return not (in_use and torch.cuda.is_current_stream_capturing())

    @property
    def _is_alone(self) -> bool:
        """Nobody is there to compare with, and nobody has asked for depth."""
        return not self.context.deep and self._world_size() < 2

    def _world_size(self) -> int:
        if torch.distributed.is_initialized():
            return torch.distributed.get_world_size()
        size = os.environ.get("WORLD_SIZE", "1")
        return int(size) if size.isdigit() else 1

    def _look_before(self, optimizer: Optimizer, tracked: Tracked) -> None:
        """What the step finds: parameters, and in depth what the optimizer remembers."""
        parameters = _held(optimizer)
        tracked.initial = tracked.params = None
        if tracked.step == 0:
            tracked.initial = tracked.digests["params"].start(parameters)
        # Whether something besides the optimizer changed parameters shows when looks follow each other.
        if tracked.interval == 1 or tracked.together == tracked.step + 1:
            tracked.params = tracked.initial or tracked.digests["params"].start(parameters)
        tracked.state = self._state(optimizer, tracked, parameters, "state before") if tracked.fixed else (None, [])

    def _look_at_gradients(self, optimizer: Optimizer, tracked: Tracked) -> None:
        """What the step is going to use."""
        parameters = _held(optimizer)
        inventory = tracked.inventory
        if inventory is None or not inventory.still_holds(parameters):
            inventory = take_inventory(self.context, tracked.number, optimizer, parameters)
            tracked.inventory = inventory
            roots = self.context.trees.of(parameters)
            tracked.buffers = Buffers(self.context, tracked.number, roots, self.context.trees.prefixes(roots))
            tracked.copies = tracked.copies or Copies(self.context, tracked.number)
            tracked.modes = tracked.modes or Modes(self.context, tracked.number)
            self.origins.watch(parameters)
        if tracked.copies is not None:
            tracked.copies.search(parameters, inventory, self._trained())
        first, tracked.initial = tracked.initial, None
        if first is not None:
            copies = tracked.copies.start() if tracked.copies is not None else []
            readings = (first[0], *(reading for _, reading, *_ in copies))
            self.context.later(
                lambda: self._write_initial(tracked, inventory, first, kinds_of(parameters), copies), *readings
            )
        self.orphans.look(optimizer, tracked.number)
        grads: list[Tensor | None] = [p.grad for p in parameters]
        tracked.held = [grad is not None for grad in grads]
        tracked.grads = tracked.digests["grads"].start(grads)
        tracked.norms = norms_of(grads)
        if tracked.spots is None or tracked.spots.inventory is not inventory:
            wanted = partial(_wants_the_next, tracked)
            if tracked.spots is not None:
                tracked.spots.end()
            tracked.spots = SampledElements(
                self.context, inventory, parameters, wanted, accumulated=tracked.accumulated
            )
        tracked.spots.write(parameters, tracked.step)

    def _look_whether_zeroed(self, optimizer: Optimizer, tracked: Tracked) -> None:
        """Of a rank that is alone: elements of one gradient, which tell whether gradients pile up; nothing of them is written."""
        parameters = _held(optimizer)
        if tracked.spots is None:
            tracked.spots = SampledElements(self.context, Inventory((), (), ()), parameters, wanted=lambda: False)
        tracked.spots.write(parameters, tracked.step)

    def _look_after(self, optimizer: Optimizer, tracked: Tracked) -> None:
        inventory, grads, norms = tracked.inventory, tracked.grads, tracked.norms
        if inventory is None or grads is None or norms is None:
            return
        parameters = _held(optimizer)
        params = tracked.digests["params"].start(parameters)
        flags = UpdateFlag.DIGESTED
        with_state = tracked.fixed or tracked.looks < FIRST_STATES or tracked.looks % 4 == 0
        with_state |= tracked.together == tracked.step
        state, owners = self._state(optimizer, tracked, parameters, "state") if with_state else (None, [])
        if with_state:
            flags |= UpdateFlag.STATE
        fields = self._fields(optimizer, tracked)
        before = tracked.params
        look = SampledStep(
            inventory, tracked.step, flags, fields, kinds_of(parameters), tracked.held, grads, params, norms
        )
        look.before, look.state, look.owners = before[0] if before is not None else None, state, owners
        look.state_before, look.owners_before = tracked.state
        look.inputs = self.inputs.taken()
        tracked.grads = tracked.norms = tracked.params = None
        tracked.state = (None, [])
        if tracked.buffers is not None and tracked.modes is not None:
            tracked.modes.look(tracked.buffers.roots(), tracked.step)
        buffers = tracked.buffers.start() if with_state and tracked.buffers is not None else None
        if buffers is not None:
            self.context.later(lambda: tracked.buffers.write(look.step, buffers), buffers[0])  # type: ignore[union-attr]
        if with_state and tracked.leads:
            self.beside.look()
        copies = tracked.copies.start() if tracked.copies is not None else []
        readings = [grads[0], params[0], norms, state, look.before, look.state_before]
        readings += [reading for _, reading, *_ in copies]
        readings += [look.inputs.reading] if look.inputs is not None else []
        self.context.later(
            lambda: self._write(tracked, look, copies), *(reading for reading in readings if reading is not None)
        )

    def _trained(self) -> set[int]:
        """ids of everything that some optimizer holds."""
        return {id(parameter) for optimizer in list(self._tracked) for parameter in _held(optimizer)}

    def _state(
        self, optimizer: Optimizer, tracked: Tracked, parameters: Sequence[Tensor], when: str
    ) -> tuple[Reading | None, list[int]]:
        """Digests of everything that the optimizer keeps, on their way, and which parameter each of them belongs to."""
        found: list[Tensor] = []
        owners: list[int] = []
        for number, parameter in enumerate(parameters):
            kept = optimizer.state.get(parameter)
            if isinstance(kept, dict):  # ZeRO leaves None where another rank keeps it
                for _, value in sorted(kept.items()):
                    if isinstance(value, Tensor):
                        found.append(value)
                        owners.append(number)
        return (tracked.digests[when].start(found)[0], owners) if found else (None, [])

    # -- writing -------------------------------------------------------------------------------------------------------

    def _fields(self, optimizer: Optimizer, tracked: Tracked) -> dict[str, Any]:
        """What an update says besides digests, as it is now."""
        totals = (self.context.backwards, *self.wrappers.counts(optimizer))
        # Fewer than before: it holds the parameters of other wrappers now.
        backwards, synced, unsynced = (max(0, now - then) for now, then in zip(totals, tracked.counted, strict=True))
        first, tracked.counted = tracked.counted[0], totals
        if tracked.spots is not None:
            elements = tracked.spots
            if elements.from_the_start and elements.watched is not None and not tracked.accumulated:
                backwards = 0  # they were for the parameters of others
            elements.from_the_start = True
        zeroed, tracked.zeroed = tracked.zeroed, self.zeroing.calls(optimizer)
        piled = bool(tracked.piled) and tracked.accumulated and zeroed == tracked.zeroed
        tracked.forget_backwards()
        cleared = backwards > 1 and self.zeroing.cleared(first)
        if cleared:
            self.zeroing.note(optimizer, tracked, first)
        return {
            "at_ns": time.monotonic_ns(),
            "hyper": _hyper(optimizer),
            "lr": _number(optimizer.param_groups[0].get("lr")) if optimizer.param_groups else 0.0,
            "scale": self.scalers.scale,
            "loss": self.backwards.mean_loss(),
            "backwards": backwards,
            "synced": synced,
            "unsynced": unsynced,
            "skipped": self.scalers.skipped,
            "site": self.trace.texts.id(sites.user_site()),
            "loss_site": self.backwards.site,
            "roots": self.backwards.roots,
            "flags": self.scalers.flags()
            | self.backwards.flags(first)
            | (UpdateFlag.PILED if piled else 0)
            | (UpdateFlag.CLEARED if cleared else 0)
            | (UpdateFlag.NO_RATE if _has_no_rate(optimizer) else 0),
        }

    def _write_if_new(self, optimizer: Optimizer, tracked: Tracked) -> None:
        """An update without digests, where something else than the step number has changed, or elements were sampled."""
        totals = (self.context.backwards, *self.wrappers.counts(optimizer))
        changes = tuple(now - then for now, then in zip(totals, tracked.counted, strict=True))
        seen = (*changes, self.scalers.scale, self.scalers.skipped, _has_no_rate(optimizer))
        piles_up = bool(tracked.piled) and tracked.step <= LOOKS and self._is_alone
        sampled = tracked.spots is not None and tracked.spots.takes_later
        if seen == tracked.written and not piles_up and not sampled:
            tracked.counted, tracked.zeroed = totals, self.zeroing.calls(optimizer)
            tracked.forget_backwards()
            self.backwards.mean_loss()
            return
        fields = self._fields(optimizer, tracked)
        tracked.written = seen
        inventory = tracked.inventory or Inventory((), (), ())
        self._update(tracked, inventory, tracked.step, fields, agree=next(iter(inventory.lanes), 0))

    def _write_initial(
        self,
        tracked: Tracked,
        inventory: Inventory,
        params: tuple[Reading, list[int]],
        kinds: list[int],
        copies: Sequence[CopyReading],
    ) -> None:
        """The parameters before the first step."""
        values = finished_all(params[0], kinds)
        if tracked.copies is not None:
            tracked.copies.write(0, copies, values)
        lanes = dict.fromkeys(inventory.lanes, 0)
        for entry, value in zip(inventory.entries, values, strict=True):
            if value:
                lanes[entry.agree] = extend(lanes[entry.agree], value)
                self.trace.digests.write(param=value, tensor=entry.seq)
        for agree, digest in lanes.items():
            fields = {"at_ns": time.monotonic_ns(), "params": digest, "flags": int(UpdateFlag.DIGESTED)}
            self._update(tracked, inventory, 0, fields, agree)

    def _write(self, tracked: Tracked, look: SampledStep, copies: Sequence[CopyReading]) -> None:
        """One update with the digests of its tensors."""
        fields, unreadable = look.fields, {*look.grads[1], *look.params[1]}
        rows = look.rows()
        if tracked.copies is not None:
            tracked.copies.write(look.step, copies, [row.param for row in rows])
        lanes = {agree: GroupDigests() for agree in look.inventory.lanes}
        for number, (entry, row) in enumerate(zip(look.inventory.entries, rows, strict=True)):
            broken = look.held[number] and not math.isfinite(row.norm)
            mark = DigestFlag.NON_FINITE if broken else DigestFlag.UNREADABLE if number in unreadable else 0
            norm = row.norm if abs(row.norm) < LARGEST_NORM else math.inf
            self.trace.digests.write(
                grad=row.grad,
                before=row.before,
                param=row.param,
                state=row.state,
                grad_sum=row.grad_sum,
                param_sum=row.param_sum,
                state_before=row.state_before,
                step=look.step,
                tensor=entry.seq,
                norm=norm,
                flags=mark,
            )
            lanes[entry.agree].take_param(row)
            lanes[entry.grad_agree].take_grad(row, look.held[number], broken)
        flags = fields["flags"] | look.flags
        total = math.sqrt(sum(row.norm * row.norm for row in rows))
        inputs = look.inputs.digest() if look.inputs is not None else 0
        tracked.written = (
            fields["backwards"],
            fields["synced"],
            fields["unsynced"],
            fields["scale"],
            fields["skipped"],
            bool(fields["flags"] & UpdateFlag.NO_RATE),
        )
        for agree, lane in lanes.items():
            self._update(
                tracked,
                look.inventory,
                look.step,
                {**fields, **lane.fields(look), "norm": total, "inputs": inputs, "flags": flags},
                agree,
            )

    def _update(self, tracked: Tracked, inventory: Inventory, step: int, fields: dict[str, Any], agree: int) -> None:
        known = {"norm": -1.0, "loss": math.nan, "tensors": len(inventory.entries), **fields}
        self.trace.updates.write(step=step, agree=agree, optimizer=tracked.number, **known)


def _is_traced() -> bool:
    """Whether somebody watches every operation (fake tensors, FLOP counters) or compiles."""
    return bool(torch._C._len_torch_dispatch_stack()) or torch.compiler.is_compiling()


def _wants_the_next(tracked: Tracked) -> bool:
    """Whether the step under way is looked at."""
    return tracked.wants(tracked.step + 1)


def _has_no_rate(optimizer: Optimizer) -> bool:
    """Whether the learning rate of every group is zero. A tensor is not read, it may be on a device."""
    groups = optimizer.param_groups
    return bool(groups) and all(type(rate := group.get("lr")) is float and rate == 0.0 for group in groups)


def _held(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]][:MOST_TENSORS]


def _hyper(optimizer: Optimizer) -> int:
    """A digest of the plain numbers in the parameter groups; tensors on a device are left alone."""
    words = []
    for group in optimizer.param_groups[:64]:
        for name, value in group.items():
            if name not in ("params", "param_names"):
                words.append(f"{name}={_plain(value)}")
    return digest_of(";".join(words))


def _plain(value: Any) -> str:
    if isinstance(value, Tensor):
        return repr(_number(value))
    if isinstance(value, bool | int | float | str) or value is None:
        return repr(value)
    if isinstance(value, tuple | list) and all(isinstance(one, int | float) for one in value):
        return repr(tuple(value))
    return type(value).__name__


def _number(value: Any) -> float:
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def install(rank: Rank) -> None:
    """Watch every optimizer of this rank from now on."""
    if rank.trace is None:
        return
    settings = rank.settings
    stream = GradientsStream(rank, rank.trace, "gradients" in settings.deep, max(1, settings.every))
    stream.install()
