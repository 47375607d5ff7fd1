"""The stream of samples: which indices each loader handed to this rank, pass by pass, whatever the sampler.

`_BaseDataLoaderIter._next_index` (torch 2.11-2.15) draws every batch of indices in the main process, workers or not. Without
workers the batch that is drawn is the batch that is handed over. With W workers and a prefetch factor F the first W * F draws of
a pass only fill the queues; from then on torch draws exactly once for each batch that it hands over, in the order of drawing. So
what was handed to the user is known without looking at a single sample, and what was only prefetched is not counted.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from distdoctor.probe import optimizer_steps, sites, wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.samples import eval_mode, replicas, worker_rng
from distdoctor.probe.samples.below_subsets import below_subsets
from distdoctor.probe.samples.bitmap_writer import BitmapWriter, BitmapWriters
from distdoctor.probe.samples.dataset_content import Content, content_of
from distdoctor.probe.samples.evaluated_rows import EvaluatedRows
from distdoctor.probe.samples.fingerprints import fingerprint, row_fingerprints
from distdoctor.probe.samples.given_rows import GivenRows
from distdoctor.probe.samples.outdated_copies import bound, is_outdated
from distdoctor.probe.samples.sample_pass import PassWriter
from distdoctor.probe.samples.samplers import SamplerFacts, chain_of, facts_of, facts_of_stream, held_in, told_within
from distdoctor.probe.samples.stream_rows import MOST_PASSES, StreamRows
from distdoctor.probe.weak_identity import ByIdentity
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace import sampled_indices
from distdoctor.recording.trace.layout import BLOCK_INDICES, PassFlag

# Blocks of one pass. 256 in all: about ten training passes remain, however large the data set.
TRAINING_BLOCKS = 24
EVALUATION_BLOCKS = 8
WRAPPED_SAMPLERS = 32
NOTED_OPTIMIZERS = 8
FRAMES = 16  # between a draw and the library's own iterator; torch has up to eight
_ACCELERATE = os.path.join("accelerate", "data_loader.py")


class Loader:
    """What a DataLoader said about itself when it was made. Holds neither the loader nor anything of it."""

    __slots__ = ("batch_size", "began_ns", "flags", "made_ns", "made_site", "number", "prefetch", "ref", "workers")

    def __init__(self, loader: Any, made_site: int) -> None:
        self.ref = weakref.ref(loader)
        self.made_ns = time.monotonic_ns()
        self.made_site = made_site
        self.number = 0
        self.began_ns = 0
        size = loader.batch_size
        self.batch_size = size if isinstance(size, int) else 0
        self.workers = loader.num_workers
        self.prefetch = loader.num_workers * (getattr(loader, "prefetch_factor", None) or 0)
        self.flags = PassFlag.DROP_LAST if loader.drop_last else PassFlag(0)
        if loader._dataset_kind == torch.utils.data.dataloader._DatasetKind.Iterable:
            self.flags |= PassFlag.ITERABLE
        if not getattr(loader, "in_order", True):
            self.flags |= PassFlag.UNORDERED


class SamplerNotes:
    """What set_epoch was told about one sampler, or data set. `changed_ns`: when that last bound an attribute of it anew."""

    __slots__ = ("calls", "changed_ns", "site", "value")

    def __init__(self) -> None:
        self.value, self.calls, self.site, self.changed_ns = -1, 0, 0, 0


class SamplesStream:
    """Writes one record per pass over a loader, and what it handed over."""

    def __init__(self, rank: Rank, trace: TraceWriter) -> None:
        self.rank, self.trace = rank, trace
        self.loaders: ByIdentity[Loader] = ByIdentity()
        self.contents: ByIdentity[Content] = ByIdentity()
        self.told: ByIdentity[SamplerNotes] = ByIdentity()
        self.latest: PassWriter | None = None
        self.steps = 0  # of any optimizer
        self.kill_at = rank.settings.kill_at or -1
        self.optimizer = 0  # which stepped last: 1, 2, ... in the order of their first steps
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._seen_optimizers = 0
        self._numbers = itertools.count(1)
        self._lines: dict[tuple[Any, ...], list[Loader]] = {}
        self._counts: dict[int, int] = {}
        self._telling = threading.local()
        self._wrapped: set[type] = set()
        self.noise: worker_rng.WorkerRngWatch | None = None
        self.modes = eval_mode.Modes()
        self.rows = GivenRows(rank, trace)
        self.sets = BitmapWriters(rank.folder, trace.rank, trace.attempt) if not trace.in_memory else None

    # --- loaders -----------------------------------------------------------------------------------------------------------

    def made(self, loader: Any) -> None:
        """A DataLoader was constructed."""
        self._meet(loader, self.trace.texts.id(sites.user_site()))

    def loader(self, loader: Any) -> Loader:
        """What is known of a loader that is about to be iterated; torchdata's are first met here, so their line is unknown."""
        return self.loaders.get(loader) or self._meet(loader, 0)

    def _meet(self, loader: Any, made_site: int) -> Loader:
        known = Loader(loader, made_site)
        self.loaders.set(loader, known)
        iterable = known.flags & PassFlag.ITERABLE
        for one in (*told_within(loader.dataset), *(() if iterable else chain_of(loader._index_sampler))):
            self.watch_set_epoch(type(one))
        return known

    def _number(self, loader: Loader, line: tuple[Any, ...]) -> int:
        """The number of a loader. One that was made anew for the next epoch takes over the number of its predecessor."""
        if not loader.number:
            known = self._lines.setdefault(line, [])
            for place, earlier in enumerate(known):
                if earlier.ref() is None or 0 < earlier.began_ns < loader.made_ns:
                    loader.number, known[place] = earlier.number, loader
                    break
            else:
                loader.number = next(self._numbers)
                known.append(loader)
        loader.began_ns = loader.began_ns or time.monotonic_ns()
        return loader.number

    # --- passes ------------------------------------------------------------------------------------------------------------

    def drawn(self, iterator: Any, index: Any) -> None:
        """A batch of indices was drawn by a loader's iterator."""
        known = iterator.__dict__.get("_distdoctor_pass")
        if known is None or known.source is not iterator._sampler_iter:
            known = self.begin(iterator)
        if known.counts:
            known.draw(index)

    def exhausted(self, iterator: Any) -> None:
        """A loader's sampler had no further batch."""
        known = iterator.__dict__.get("_distdoctor_pass")
        if known is None or (not known.ended and known.source is not iterator._sampler_iter):
            known = self.begin(iterator)
        if known.counts:
            known.exhausted()
        if self.noise is not None and self.noise.waiting:
            self.noise.write()

    def begin(self, iterator: Any) -> PassWriter:
        """A new pass, seen at its first draw."""
        self._settle()
        loader = iterator.__dict__.get("_distdoctor_loader") or Loader(_Unknown(iterator), 0)
        sampler, dataset = iterator._index_sampler, iterator._dataset
        iterable = bool(loader.flags & PassFlag.ITERABLE)
        facts = facts_of_stream(dataset, sampler) if iterable else facts_of(sampler)
        told = self._told(told_within(dataset) if iterable else chain_of(sampler))
        base, translate, translation = below_subsets(dataset)
        content = self._content(base, iterable)
        outer = self._content(dataset) if translate else content
        own = loader.flags & ~PassFlag.DROP_LAST if facts.num_replicas else loader.flags  # which the sampler says
        flags = self._flags_now(iterator, loader, own | facts.flags | translation)
        texts = self.trace.texts
        loop_site = texts.id(sites.user_site())
        described = texts.id(f"{content.text}\0{outer.digest}\0{content.bag}\0{content.objects}\0{held_in(dataset)}")
        chain = texts.id(facts.chain)
        number = self._number(loader, (loader.made_site, loop_site, described, chain))
        self._counts[number] = count = self._counts.get(number, 0) + 1
        length = outer.length
        keep = _one_in(length, facts, flags)
        seq = self.trace.passes.write(
            started_ns=time.monotonic_ns(),
            dataset_length=length,
            epoch_told=told.value,
            seed=facts.seed,
            first_step=self.rank.step if "progress" in self.rank.streams else self.steps,
            loader=number,
            pass_number=count,
            loop_site=loop_site,
            made_site=loader.made_site,
            dataset=described,
            sampler=chain,
            set_epoch_site=told.site,
            set_epoch_calls=told.calls,
            num_replicas=facts.num_replicas,
            sampler_rank=facts.rank,
            batch_size=loader.batch_size or facts.batch_size,
            workers=loader.workers,
            keep_one_in=keep,
            flags=flags,
        )
        new_set = self._new_set(content) if not flags & (PassFlag.ITERABLE | PassFlag.UNTRANSLATED) else None
        self.rank.on_pass()
        self.rows.loader_begins()
        source, around = iterator._sampler_iter, self._under_way()
        self.latest = begun = PassWriter(self, source, loader.prefetch, seq, flags, keep, new_set, around)
        # Whether what ranks read by themselves is the same can only be told by its content.
        by_itself = iterable or not (facts.num_replicas or begun.evaluates)
        if by_itself and loader.batch_size and count <= MOST_PASSES:
            begun.rows = StreamRows(self.trace, seq)
            iterator.__dict__.setdefault("_next_data", self.watched_data(iterator))
        begun.behind = _held_back()
        begun.translated_by(translate)
        iterator.__dict__["_distdoctor_pass"] = begun
        if self.noise is not None:
            self.noise.begun(iterator.__dict__.pop("_distdoctor_noise", -1), begun, loader.workers)
        if flags & PassFlag.GRADIENTS_ON:
            self.rank.epoch = told.value if told.value >= 0 else count - 1
        return begun

    def _flags_now(self, iterator: Any, loader: Loader, flags: PassFlag) -> PassFlag:
        """These, and what is so at this moment."""
        if flags & PassFlag.ITERABLE:
            flags |= PassFlag.HASHED
        if torch.is_grad_enabled():
            flags |= PassFlag.GRADIENTS_ON
        if self.modes.evaluating:
            flags |= PassFlag.EVAL_MODE
        if loader.workers and self._is_outdated(iterator):
            flags |= PassFlag.OUTDATED
        if getattr(iterator, "_persistent_workers", False):
            flags |= PassFlag.PERSISTENT
        if loader.workers and "_distdoctor_pass" not in iterator.__dict__:
            flags |= PassFlag.STARTED
        return flags

    def _new_set(self, content: Content) -> Callable[[int], BitmapWriter | None] | None:
        """Makes the set of all samples that a pass draws from such data."""
        sets, length = self.sets, content.length
        return (lambda seq: sets.begin(seq, length)) if sets is not None and length > 0 else None

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer steps."""
        if self.steps == self.kill_at:
            # `check-data --resume`, `check-resume`: as if the machine had gone, or as a scheduler announces that it will.
            os.kill(os.getpid(), signal.SIGTERM if self.rank.settings.kill_gently else signal.SIGKILL)
        self.steps += 1
        if self.noise is not None and self.noise.waiting:
            self.noise.write()
        number = self._optimizers.get(optimizer)
        if number is None:
            self._seen_optimizers = number = self._seen_optimizers + 1
            self._optimizers[optimizer] = number
            if number <= NOTED_OPTIMIZERS:
                replicas.note_parameters(self.rank, optimizer)
        self.optimizer = number

    def watched_data(self, iterator: Any) -> Any:
        """An iterator's own `_next_data`, which looks at what is handed over. It does not keep the iterator alive."""
        original, itself = type(iterator)._next_data, weakref.ref(iterator)
        handed, over = self.rank.guarded(self._streamed), self.rank.guarded(self._streamed_out)

        def _next_data() -> Any:
            one = itself()
            try:
                data = original(one)
            except StopIteration:
                over(one)
                raise
            handed(one, data)
            return data

        return _next_data

    def _streamed(self, iterator: Any, batch: Any) -> None:
        known = iterator.__dict__.get("_distdoctor_pass")
        if known is None:
            return
        if not known.counts:
            known.streamed(fingerprint(batch))
        rows = known.rows
        if rows is not None and rows.wanted(began := time.monotonic_ns()):
            found = row_fingerprints(batch)
            if found is None:
                known.rows = None
            else:
                rows.add(found, began)

    def _streamed_out(self, iterator: Any) -> None:
        known = iterator.__dict__.get("_distdoctor_pass")
        if known is not None and not known.counts:
            known.over()

    def _settle(self) -> None:
        """The last step of a pass comes after its last batch was handed over: look once more before the next pass begins.

        Not after an evaluation, or after a pass inside of another one: the steps that follow belong to what goes on around it.
        """
        known = self.latest
        if known is not None and known.ended and known.outer is None and not known.evaluates:
            known.note_step()

    def _under_way(self) -> PassWriter | None:
        """The pass that has begun last and is not over. One that was left early, and forgotten, is none."""
        known = self.latest
        while known is not None and known.ended:
            known = known.outer() if known.outer is not None else None
        return known

    def _content(self, dataset: Any, iterable: bool = False) -> Content:
        known = self.contents.get(dataset)
        if known is None:
            known = content_of(dataset, iterable)
            self.contents.set(dataset, known)
        return known

    # --- set_epoch ---------------------------------------------------------------------------------------------------------

    def _told(self, chain: Iterable[Any]) -> SamplerNotes:
        """What the outermost of these that was told an epoch was told."""
        for one in chain:
            told = self.told.get(one)
            if told is not None:
                return told
        return SamplerNotes()

    def _is_outdated(self, iterator: Any) -> bool:
        began_ns, own = iterator.__dict__.get("_distdoctor_began_ns"), [*chain_of(iterator._index_sampler)]
        parts = [one for one in told_within(iterator._dataset) if not any(one is mine for mine in own)]
        told = [one for one in parts if self.told.get(one) is not None]
        changed = (self._told([one]).changed_ns for one in told)
        return began_ns is not None and is_outdated(told, changed, began_ns)

    def watch_set_epoch(self, kind: type) -> None:
        """Note calls of `set_epoch`, wherever among the bases of `kind` it is defined in Python."""
        for owner in kind.__mro__:
            if "set_epoch" in vars(owner):
                if owner not in self._wrapped and len(self._wrapped) < WRAPPED_SAMPLERS:
                    self._wrapped.add(owner)
                    try:
                        wrappers.lay(owner, "set_epoch", self._wrap_set_epoch)
                    except (TypeError, AttributeError) as error:
                        hand_on(error)
                        # a class that cannot be changed
                return

    def _wrap_set_epoch(self, original: Any) -> Any:
        note = self.rank.guarded(self._note_set_epoch)
        look = self.rank.guarded(bound)
        telling = self._telling

        def set_epoch(sampler: Any, *args: Any, **kwargs: Any) -> Any:
            outer = getattr(telling, "sampler", None)
            telling.sampler = id(sampler)
            before = look(sampler) if outer != id(sampler) else None
            try:
                return original(sampler, *args, **kwargs)
            finally:
                telling.sampler = outer
                if outer != id(sampler):  # else a subclass's set_epoch that calls its base's: one call
                    note(sampler, args[0] if args else next(iter(kwargs.values()), None), before)

        return set_epoch

    def _note_set_epoch(self, sampler: Any, epoch: Any, before: dict[str, Any] | None) -> None:
        told = self.told.get(sampler)
        if told is None:
            told = SamplerNotes()
            self.told.set(sampler, told)
        told.calls += 1
        told.value = _whole(epoch)
        told.site = self.trace.texts.id(sites.user_site())
        if before is not None and bound(sampler) != before:
            told.changed_ns = time.monotonic_ns()


class _Unknown:
    """Stands in for the loader of an iterator that was made in a way that we did not see."""

    batch_size = None
    prefetch_factor = 0
    drop_last = False

    def __init__(self, iterator: Any) -> None:
        self.num_workers = iterator._num_workers
        self.prefetch_factor = getattr(iterator, "_prefetch_factor", 0)
        self._dataset_kind = iterator._dataset_kind


def _held_back() -> int:
    """How many batches a library around the loader keeps for itself: accelerate's hand a batch on when they have the next."""
    frame: Any = sys._getframe(1)
    for _ in range(FRAMES):
        if frame is None:
            return 0
        if frame.f_code.co_name == "__iter__" and frame.f_code.co_filename.endswith(_ACCELERATE):
            return 1
        frame = frame.f_back
    return 0


def _whole(epoch: Any) -> int:
    """An epoch as a number; -2 for what is none. A tensor is not read: it may lie on a device."""
    if isinstance(epoch, torch.Tensor):
        return -2
    try:
        number = int(epoch)
    except (TypeError, ValueError, OverflowError) as error:
        hand_on(error)
        return -2
    return number if abs(number) < 1 << 62 else -2


def _one_in(length: int, facts: SamplerFacts, flags: PassFlag) -> int:
    """Which part of the indices is kept: decided by what all ranks know alike."""
    if length <= 0 or flags & PassFlag.ITERABLE:
        return 1
    blocks = TRAINING_BLOCKS if flags & PassFlag.GRADIENTS_ON else EVALUATION_BLOCKS
    share = -(-length // max(1, facts.num_replicas))
    return sampled_indices.one_in(share, blocks * BLOCK_INDICES)


def _drawing(rank: Rank, stream: SamplesStream, original: Any) -> Any:
    drawn, exhausted = stream.drawn, rank.guarded(stream.exhausted)

    def _next_index(iterator: Any) -> Any:
        try:
            index = original(iterator)
        except StopIteration:
            exhausted(iterator)
            raise
        if not rank.silent:
            try:
                drawn(iterator, index)
            except Exception as error:
                rank.trouble("samples", error)
        return index

    return _next_index


def install(rank: Rank) -> None:
    """Watch every DataLoader of this process from now on."""
    from torch.utils.data import dataloader
    from torch.utils.data.distributed import DistributedSampler

    if rank.trace is None:
        return
    stream = SamplesStream(rank, rank.trace)
    replicas.install(rank)
    stream.watch_set_epoch(DistributedSampler)
    stream.modes.install(rank)
    EvaluatedRows(rank, rank.trace).install()
    optimizer_steps.before_each(rank.guarded, stream.stepped)
    made = rank.guarded(stream.made)
    stream.noise = noise = worker_rng.install(rank, rank.trace)
    about_to_iterate = rank.guarded(noise.about_to_iterate)

    @rank.guarded
    def begun(iterator: Any, loader: Any) -> None:
        iterator.__dict__["_distdoctor_loader"] = known = stream.loader(loader)
        iterator.__dict__["_distdoctor_noise"] = noise.number
        iterator.__dict__["_distdoctor_began_ns"] = time.monotonic_ns()  # its workers begin after that
        if known.flags & PassFlag.ITERABLE:
            iterator.__dict__["_next_data"] = stream.watched_data(iterator)

    def constructing(original: Any) -> Any:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            made(loader)

        return __init__

    def iterating(original: Any) -> Any:
        def __init__(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            about_to_iterate()
            original(iterator, loader, *args, **kwargs)
            begun(iterator, loader)

        return __init__

    wrappers.lay(dataloader.DataLoader, "__init__", constructing)
    wrappers.lay(dataloader._BaseDataLoaderIter, "__init__", iterating)
    wrappers.lay(dataloader._BaseDataLoaderIter, "_next_index", partial(_drawing, rank, stream))
