"""The stream of memory: how much there is after each optimizer step, what it is for, and who keeps tensors.

By default a step costs two looks at /proc/self/statm (2 us each), a note at the beginning of each phase (2 us each) and, where
CUDA is in use, one look at the allocator's own counters; nothing waits for a device. Bytes by category are counted in the first
steps and then rarely. The user's variables are looked at after steps 3, 6, 9, 12, 18, 24, 36, 48, 60, 72, ...: what grows between
these looks grows with the training.

With `ProbeSettings.deep` every phase has its peak, and every module what it keeps for backward.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

import torch
import torch.autograd
from torch.optim.optimizer import Optimizer

from distdoctor.probe import optimizer_steps, sites, wrappers
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank
from distdoctor.probe.memory import device_memory, graphs
from distdoctor.probe.memory.context import MemoryContext
from distdoctor.probe.memory.device_memory import NOTHING
from distdoctor.probe.memory.evaluations import Evaluations
from distdoctor.probe.memory.holders import HolderScan, Unit
from distdoctor.probe.memory.host_memory import HostMemory, children, host
from distdoctor.probe.memory.precision import note_full_precision
from distdoctor.probe.memory.storages import Categories, categories
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import DeviceContext, GradientsUnused, OutOfMemory
from distdoctor.recording.trace.layout import HOOKS, HolderFlag, Phase

THIRD = 3  # step or backward, by which everything is there and nothing is made for the first time
FIRST_STEPS = 64  # every one of them is written down
PER_INTERVAL = (
    128  # records at one interval; then it doubles, so that the ring always reaches back over half the training
)
HOST_SECONDS = 1.0  # between two looks at the machine's memory and the workers
RARELY = 1024  # steps between two counts of all categories, after the first ones
RANKS_WITHOUT_STEPS = (
    4,
    16,
    64,
)  # backward passes after which a rank is written down although no optimizer steps on it
UNUSED = 12  # times that gradients are computed before it is said that no optimizer steps
FREE_SECONDS = 0.25  # of looking at variables, once, before the share counts: the first nine looks, also on a busy core
SHARE = 0.002  # of the time of the training that looks at variables may take after that
MOST_UNITS = 16  # of one look are written, those with the most behind them
LEAST_BYTES = 4096  # in a holder without a graph, to be written


def looks_at_holders(step: int) -> bool:
    """Whether the user's variables are looked at after this step: 3, 6, 9, 12, 18, 24, 36, and from 48 on four times until twice
    as many."""
    if step <= 12:
        return step % 3 == 0 and step > 0
    odd = step // (step & -step)
    return odd in (3, 9) or (odd in (15, 21) and step > 48)


class MemoryStream(MemoryContext):
    """Writes what a rank's memory is used for. What torch calls is guarded: trouble ends this stream, and nothing else."""

    def __init__(self, rank: Rank, trace: TraceWriter, deep: bool) -> None:
        super().__init__(rank, trace, deep)
        self.evaluations = Evaluations(self)
        self.phase = Phase.START
        self.backwards = 0
        self.deep_looks: Any = None
        self._steps: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._interval, self._written = 1, 0
        self._rss_backward = 0
        self._categories = Categories()
        self._ids: tuple[int, ...] = ()
        self._host, self._children, self._host_at = HostMemory(), (0, 0), 0.0
        self._looked_at = 0  # number of the operation that was next at the last look at variables
        self._spent, self._began = 0.0, time.monotonic()

    def install(self) -> None:
        """Lay the hooks and wrappers of this stream."""
        from torch.utils.data import dataloader

        self.trees.install()
        wrappers.listen(torch.autograd, "backward", before=self.guarded(self._backward_begins))
        wrappers.lay(torch.autograd, "grad", self._around_grad)
        wrappers.listen(
            dataloader._BaseDataLoaderIter,
            "__next__",
            before=self.guarded(self._batch_asked_for),
            after=self.guarded(self._batch_is_there),
        )
        optimizer_steps.before_each(self.guarded, self._before)
        optimizer_steps.after_each(self.guarded, self._after)
        self.evaluations.install()
        self.rank.on_exception.append(self.guarded(self.failed))
        self._write(0, 0)
        self.trace.doing.write(at_ns=time.monotonic_ns(), phase=Phase.START)
        if self.deep:
            from distdoctor.probe.memory.activations import DeepLooks

            self.deep_looks = DeepLooks(self, self.count_categories)
            self.deep_looks.install()

    # -- phases --------------------------------------------------------------------------------------------------------

    def enter(self, phase: Phase, *, noted: bool = True) -> None:
        """The rank goes on to another phase."""
        if self.deep_looks is not None and not self.off and not self.rank.silent:
            self.deep_looks.leave(self.phase)
        self.phase = phase
        if noted:
            self._note_phase()

    def _note_phase(self) -> None:
        """For a post-mortem: whom the kernel kills, nobody can ask."""
        site = self.trace.texts.id(sites.user_site())
        self.trace.doing.rewrite(1, at_ns=time.monotonic_ns(), step=self.step, phase=self.phase, site=site)

    def _asked(self) -> None:
        """Gradients are computed once more."""
        self.gradients_asked += 1
        if self.gradients_asked == UNUSED and not self.step:
            self.trace.note(GradientsUnused(UNUSED), site=self.trace.texts.id(sites.user_site()))

    def _around_grad(self, original: Any) -> Any:
        asked = self.guarded(self._asked)

        def grad(*args: Any, **kwargs: Any) -> Any:
            asked()
            return original(*args, **kwargs)

        return skipped(grad)

    def _backward_begins(self, tensors: Any) -> None:
        if torch._C._current_graph_task_id() == -1:  # else it is a part of another one (checkpointing)
            if self.deep_looks is not None:
                self.deep_looks.outside_modules(tensors)
            self.backwards += 1
            self._asked()
            self._rss_backward = self.resident.now()
            self.evaluations.backward_begins(tensors)
            if self.backwards == THIRD and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                self._note_precision(tensors)
            if not self.step and self.backwards in RANKS_WITHOUT_STEPS:
                self.count_categories()
                self._write(0, self.trace.texts.id(sites.user_site()))
            self.enter(Phase.BACKWARD)

    def _batch_asked_for(self, iterator: Any) -> None:
        self.enter(Phase.DATA)
        self.evaluations.next_batch()

    def _batch_is_there(self) -> None:
        self.enter(Phase.FORWARD)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.enter(Phase.OPTIMIZER)
        self._steps.setdefault(optimizer, 0)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped. The one that steps most often counts the steps (a GAN has two)."""
        self.enter(Phase.FORWARD, noted=False)
        self._steps[optimizer] = count = self._steps.get(optimizer, 0) + 1
        more = count > self.step
        self.step = max(self.step, count)
        self._note_phase()
        if not more:
            return
        self.evaluations.stepped()
        if self.deep_looks is not None:
            self.deep_looks.stepped()
        if count <= 3 or count % RARELY == 0 or (count % 64 == 0 and self._ids != self._all_ids()):
            self.count_categories()
        if count == THIRD:
            self._note_contexts()
        if looks_at_holders(count) and self._may_look():
            self._look_at_holders()
        if count <= FIRST_STEPS or count % self._interval == 0:
            self._write(count, self.trace.texts.id(sites.user_site()))

    # -- what is written -----------------------------------------------------------------------------------------------

    def _write(self, step: int, site: int) -> None:
        self._written += 1
        if self._written % PER_INTERVAL == 0:
            self._interval *= 2
        now = time.monotonic()
        if now - self._host_at >= HOST_SECONDS or step in (2, 16):  # short trainings have workers too
            self._host, self._children, self._host_at = host(), children(), now
        on_device = self.device.now() if torch._C._len_torch_dispatch_stack() == 0 else NOTHING
        rss, shared = self.resident.both()
        self.trace.memory.write(
            at_ns=time.monotonic_ns(),
            step=step,
            rss=rss,
            rss_backward=self._rss_backward,
            shared=shared,
            site=site,
            workers=self._children[0],
            workers_rss=self._children[1],
            **self._categories._asdict(),
            **self._host._asdict(),
            **on_device._asdict(),
        )

    def _note_precision(self, tensors: Any) -> None:
        roots = (
            [tensors]
            if isinstance(tensors, torch.Tensor)
            else [one for one in tensors if isinstance(one, torch.Tensor)]
        )
        note_full_precision(self.trace, roots, self.trace.texts.id(sites.user_site()))

    def _note_contexts(self) -> None:
        site = self.trace.texts.id(sites.user_site())
        for one in device_memory.contexts():
            self.trace.note(DeviceContext(one.device, one.own, one.cached), site=site)

    def _all_ids(self) -> tuple[int, ...]:
        return tuple(
            id(p) for optimizer in list(self._steps) for group in optimizer.param_groups for p in group["params"]
        )

    def count_categories(self) -> None:
        """Bytes of parameters, gradients, optimizer state and buffers, as they are now."""
        if torch._C._len_torch_dispatch_stack():
            return  # fake tensors: somebody computes what a training would need
        self._ids = self._all_ids()
        self._categories, self.known = categories(list(self._steps), self.trees.roots())

    def _may_look(self) -> bool:
        """Not while somebody watches every operation, and not beyond the share of the time that it may cost."""
        if torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
            return False
        return self._spent < FREE_SECONDS or self._spent < SHARE * (time.monotonic() - self._began)

    def _look_at_holders(self) -> None:
        began = time.thread_time()
        self.count_categories()
        before, self._looked_at = self._looked_at, graphs.now()
        limit = 0.2 if self.deep else 0.02
        scan = HolderScan(self.known, before=before, seconds=limit, models=self.trees.roots())
        units = scan.units()
        if scan.failure is not None:
            self.leave_out("a holder was left out", scan.failure)
        worth = [one for one in units if one.flags & HolderFlag.GRAPH or one.bytes >= LEAST_BYTES or one.kind == HOOKS]
        worth.sort(key=lambda one: (-one.graph.old, -one.graph.saved, -one.bytes))
        for unit in worth[:MOST_UNITS]:
            self.write_unit(unit)
        self._spent += time.thread_time() - began

    def write_unit(self, unit: Unit) -> None:
        """One holder as it is now."""
        texts = self.trace.texts
        self.trace.holders.write(
            at_ns=time.monotonic_ns(),
            step=self.step,
            bytes=unit.bytes,
            saved=unit.graph.saved,
            nodes=unit.graph.nodes,
            old_nodes=unit.graph.old,
            tensors=unit.tensors,
            length=min(unit.length, 0xFFFFFFFF),
            label=texts.id(unit.label[:200]),
            kind=texts.id(unit.kind),
            site=texts.id(unit.site),
            flags=unit.flags,
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def failed(self, error: BaseException) -> None:
        """The uncaught exception that ends this rank: when an allocation failed, note in which phase."""
        words = f"{type(error).__name__}: {error}"
        if not is_out_of_memory(words):
            return
        phase = phase_of(error) or self.phase
        on_device = self.device.now()
        limit = on_device.capacity if "CUDA" in words else address_space()
        self.trace.note(OutOfMemory(phase.word, self.resident.now(), on_device.allocated, limit))
        self._write(self.step, 0)


def is_out_of_memory(words: str) -> bool:
    """Whether an exception says that an allocation failed (torch 2.11-2.15, numpy 2, Python 3.11-3.14)."""
    return (
        words.startswith(("MemoryError", "OutOfMemoryError", "_ArrayMemoryError"))
        or "CUDA out of memory" in words
        or "can't allocate memory" in words
        or "Cannot allocate memory" in words
    )


def phase_of(error: BaseException) -> Phase | None:
    """The phase that the exception's own traceback shows: the innermost of torch's entrances; None when it passed none."""
    found, trace = None, error.__traceback__
    while trace is not None:
        path, name = trace.tb_frame.f_code.co_filename, trace.tb_frame.f_code.co_name
        if path.endswith("torch/autograd/__init__.py") and name == "backward":
            found = Phase.BACKWARD
        elif "/torch/optim/" in path:
            found = Phase.OPTIMIZER
        elif "/torch/utils/data/" in path:
            found = Phase.DATA
        elif path.endswith("torch/nn/modules/module.py") and name == "_call_impl":
            found = found or Phase.FORWARD
        trace = trace.tb_next
    return found


def address_space() -> int:
    """The limit of this process's address space in bytes (`ulimit -v`), 0 without one."""
    import resource

    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return soft if 0 < soft < 1 << 62 else 0


def install(rank: Rank) -> None:
    """Watch this rank's memory from now on."""
    if rank.trace is None:
        return
    MemoryStream(rank, rank.trace, "memory" in rank.settings.deep).install()
