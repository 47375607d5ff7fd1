"""What a sampler says about itself: the samplers within it, how it shards, shuffles and pads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset
from torch.utils.data import sampler as torch_samplers
from torch.utils.data.distributed import DistributedSampler

from distdoctor.probe.variables import attributes_of
from distdoctor.recording.trace.layout import PassFlag

# Under these names samplers hold the samplers that they wrap: torch, accelerate, Lightning (whose wrapper calls it a data set).
# Under another one, the only sampler that they hold.
_WITHIN = ("sampler", "batch_sampler", "base_sampler", "_sampler", "dataset")
_ACCELERATE = "accelerate.data_loader"
# Under these, iterable data sets hold those that they wrap: accelerate's shards, most people's own wrappers, data pipes.
_WITHIN_STREAMS = ("dataset", "source_dataset", "source_datapipe", "_dataset")
_DEPTH = 8
_PARTS = 64  # of data
_LAYERS = 64  # of Hugging Face's iterables: one for each map, filter, shuffle, ... that was called
_STOCK_BATCHES = torch_samplers.BatchSampler
_RANDOM = torch_samplers.RandomSampler  # torchdata puts its own in that place
_STATEFUL = "torchdata.stateful_dataloader.sampler"  # torchdata's twins of torch's samplers draw as they do (0.11)


def chain_of(sampler: Any) -> Iterator[Any]:
    """The sampler and those within it, from the outermost."""
    for _ in range(_DEPTH):
        if sampler is None:
            return
        yield sampler
        scope = getattr(sampler, "__dict__", None)
        scope = scope if type(scope) is dict else {}
        within = (scope.get(name) for name in _WITHIN)
        only = [one for one in scope.values() if isinstance(one, torch_samplers.Sampler)]
        sampler = next((one for one in within if _is_sampler(one)), only[0] if len(only) == 1 else None)


def streams_of(dataset: Any) -> Iterator[Any]:
    """The iterable data set and those within it, from the outermost."""
    for _ in range(_DEPTH):
        if not isinstance(dataset, Dataset):
            return
        yield dataset
        scope = getattr(dataset, "__dict__", None)
        scope = scope if type(scope) is dict else {}
        dataset = next((scope[name] for name in _WITHIN_STREAMS if name in scope), None)


def told_within(dataset: Any) -> Iterator[Any]:
    """The data set and what is within it that can be told the epoch, whatever that is called: its workers hold copies of all."""
    waiting, seen = [dataset], set[int]()
    while waiting and len(seen) < _PARTS:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for value in attributes_of(one).values():
            parts = value[:_PARTS] if type(value) in (list, tuple) else (value,)
            waiting += [part for part in parts if issubclass(type(part), Dataset) or hasattr(type(part), "set_epoch")]


def held_in(dataset: Any) -> str:
    """The classes of what lies in a data set and has a set_epoch."""
    parts = (type(one) for one in told_within(dataset) if one is not dataset)
    return ">".join(kind.__name__ for kind in parts if hasattr(kind, "set_epoch"))


def _is_sampler(thing: Any) -> bool:
    return thing is not None and (isinstance(thing, torch_samplers.Sampler) or "Sampler" in type(thing).__name__)


@dataclass(frozen=True)
class SamplerFacts:
    """`chain` are the classes from the outermost in. `num_replicas` 0 and `rank` -1: nothing in it shards. `seed` -1: none.
    `batch_size` 0: it does not say."""

    chain: str
    num_replicas: int
    rank: int
    seed: int
    flags: PassFlag
    batch_size: int = 0


def facts_of(sampler: Any) -> SamplerFacts:
    """What can be read off the attributes of a sampler; nothing of it is called."""
    chain = list(chain_of(sampler))
    flags = _stock_flags(chain)
    if any(hasattr(type(one), "set_epoch") for one in chain):
        flags |= PassFlag.TELLABLE
    shuffle = _first(chain, "shuffle", bool)
    if shuffle is not None:
        flags |= PassFlag.SHUFFLE_KNOWN | (PassFlag.SHUFFLE if shuffle else PassFlag(0))
    if _first(chain, "replacement", bool):
        flags |= PassFlag.REPLACEMENT
    sharder = next((one for one in chain if _first([one], "num_replicas", int) is not None), None)
    if sharder is not None and _first([sharder], "drop_last", bool):
        flags |= PassFlag.DROP_LAST
    seed = _first(chain, "seed", int)
    names = ">".join(type(one).__name__ for one in chain)
    replicas = _first([sharder], "num_replicas", int) or 0
    rank = _first([sharder], "rank", int)
    size = _first(chain, "batch_size", int) or 0
    shard = next((one for one in chain if _is_of(type(one), _ACCELERATE, "BatchSamplerShard")), None)
    if shard is not None:
        replicas, rank = _first([shard], "num_processes", int) or 0, _first([shard], "process_index", int)
        if _first([shard], "split_batches", bool):
            size //= max(1, replicas)
        evens = _first([shard], "even_batches", bool) and not _first([shard], "drop_last", bool)
        if evens and _stock_flags(chain[chain.index(shard) + 1 :]) & PassFlag.WHOLE:
            flags |= PassFlag.EVENED
    return SamplerFacts(
        names, replicas, -1 if rank is None else rank, -1 if seed is None else seed & (1 << 62) - 1, flags, size
    )


def facts_of_stream(dataset: Any, sampler: Any) -> SamplerFacts:
    """The same of iterable data, which shuffle by themselves: nothing in them is called, and no element looked at.

    Hugging Face's `IterableDataset` keeps how it shuffles in `_shuffling` (datasets 2 to 4) or as one of the iterables that it is
    made of (datasets 5: `BufferShuffledExamplesIterable`); others say so in an attribute `shuffle`.
    """
    chain, flags = list(streams_of(dataset)), PassFlag(0)
    if any(hasattr(type(one), "set_epoch") for one in told_within(dataset)):
        flags |= PassFlag.TELLABLE
    scopes = [one.__dict__ for one in chain if type(getattr(one, "__dict__", None)) is dict]
    kept = [scope["_shuffling"] is not None for scope in scopes if "_shuffling" in scope]
    kept += [_is_shuffled(scope["_ex_iterable"]) for scope in scopes if "_ex_iterable" in scope]
    shuffles = any(kept) if kept else _first(chain, "shuffle", bool)
    if shuffles is not None:
        flags |= PassFlag.SHUFFLE_KNOWN | (PassFlag.SHUFFLE if shuffles else PassFlag(0))
    seed = _first(chain, "seed", int)
    names = ">".join(type(one).__name__ for one in chain_of(sampler))
    return SamplerFacts(names, 0, -1, -1 if seed is None else seed & (1 << 62) - 1, flags)


def _is_shuffled(examples: Any) -> bool:
    """Whether one of the iterables that Hugging Face's data are made of shuffles."""
    for _ in range(_LAYERS):
        if "Shuffled" in type(examples).__name__:
            return True
        scope = getattr(examples, "__dict__", {})
        examples = scope.get("ex_iterable") if type(scope) is dict else None
        if examples is None:
            return False
    return False


def _stock_flags(chain: list[Any]) -> PassFlag:
    """What follows from torch's own classes, when nothing but torch's own batching lies around them."""
    inner = chain[1:] if chain and _only_batches(chain[0]) else chain
    if not inner:
        return PassFlag(0)
    one, kind = inner[0], type(inner[0])
    if kind is torch_samplers.SequentialSampler:
        return PassFlag.WHOLE | PassFlag.SHUFFLE_KNOWN
    if kind is _RANDOM or _is_stateful(kind, "RandomSampler") or _is_of(kind, _ACCELERATE, "SeedableRandomSampler"):
        whole = not one.replacement and getattr(one, "_num_samples", None) is None
        return PassFlag.SHUFFLE | PassFlag.SHUFFLE_KNOWN | (PassFlag.WHOLE if whole else PassFlag(0))
    if kind is torch_samplers.SubsetRandomSampler:
        return PassFlag.SHUFFLE | PassFlag.SHUFFLE_KNOWN
    own_order = kind.__iter__ is not DistributedSampler.__iter__ and not _is_stateful(
        kind, "StatefulDistributedSampler"
    )
    if isinstance(one, DistributedSampler) and not own_order:
        return PassFlag.DISTRIBUTED_SAMPLER
    return PassFlag(0)


def _only_batches(sampler: Any) -> bool:
    return type(sampler) is _STOCK_BATCHES or _is_stateful(type(sampler), "BatchSampler")


def _is_stateful(kind: type, name: str) -> bool:
    return _is_of(kind, _STATEFUL, name)


def _is_of(kind: type, module: str, name: str) -> bool:
    return kind.__module__ == module and kind.__name__ == name


def _first(chain: list[Any], name: str, kind: type) -> Any:
    """The first attribute of this name and type, None if no one has it."""
    for one in chain:
        scope = getattr(one, "__dict__", None)
        value = scope.get(name) if type(scope) is dict else None
        if type(value) is kind:
            return value
    return None
