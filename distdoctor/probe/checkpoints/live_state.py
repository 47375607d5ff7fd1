"""What a training consists of at one moment: digests of weights, buffers, moments and copies, learning rates, loss scales."""

from __future__ import annotations

import hashlib
import math
import random
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from distdoctor.probe.checkpoints.counters import counters
from distdoctor.probe.checkpoints.tensors import tensors_in
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.tensors.digests import Digests, bytes_of, finished, is_readable, kinds_of, local
from distdoctor.probe.tensors.module_trees import ModuleTrees, parameters_of, plain_name
from distdoctor.recording.trace.layout import digest_of, extend
from distdoctor.recording.trace.state_file import (
    BUFFERS,
    COPIES,
    LR,
    MOMENTS,
    MOST_TENSORS,
    POSITION,
    SCALE,
    SCHEDULE,
    UPDATES,
    WEIGHTS,
)

SAMPLED = 64  # elements of a tensor that are looked at for what type they would fit into
MOST_BESIDE = 256  # names of a checkpoint: what is not trained is little, unless it holds copies
COMPARED = 8  # tensors of a checkpoint that are compared with the live ones
LARGEST_BYTES = 8 << 30  # of all that is digested at one moment; the rest is left out

SCANS = 2  # moments at which every object of the process is looked at, for copied modules: the start and the first save

Named = dict[str, Tensor]


class _Made(NamedTuple):
    """One thing, and how many were made up to it."""

    number: int
    ref: weakref.ref[Any]


class LiveState:
    """Whoever holds state in this process, as far as it lives. Nothing is kept alive."""

    def __init__(self, trees: ModuleTrees) -> None:
        self.trees = trees
        self._optimizers: list[_Made] = []
        self._schedulers: list[_Made] = []
        self._scalers: list[_Made] = []
        self.count = 0  # of all that was made
        self.has_optimizer = False  # one was made; else the script steps by itself
        self.scans = 0
        self._copies: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # found last by `tensors`, with what they wrap

    def made(self, kind: str, thing: Any) -> None:
        """An optimizer, a scheduler or a scaler begins to live."""
        known: list[_Made] = getattr(self, f"_{kind}")
        known[:] = [made for made in known if made.ref() is not None and made.ref() is not thing]
        self.count += 1
        self.has_optimizer |= kind == "optimizers"
        known.append(_Made(self.count, weakref.ref(thing)))

    def has_new_optimizer(self, since: int) -> bool:
        """Whether one was made after the first so many things, though it may be under construction."""
        return bool(_living(self._optimizers, since))

    def optimizers(self, since: int = 0) -> list[torch.optim.Optimizer]:
        """Those that live and hold parameters; `since`: without the first so many things that were made."""
        return [one for one in _living(self._optimizers, since) if getattr(one, "param_groups", None)]

    def trained(self, since: int = 0) -> dict[int, Tensor]:
        """What optimizers hold, by `id`; of a script that steps by itself whatever may be trained."""
        if not self.has_optimizer:
            held = (p for root in self.trees.roots() for _, p in parameters_of(root))
            return {id(p): p for p in held if p.requires_grad}
        return {id(p): p for one in self.optimizers(since) for group in one.param_groups for p in group["params"]}

    def tensors(self, since: int = 0) -> dict[str, Named]:
        """Everything by kind and name. `copies` are modules that no optimizer trains: averages, teachers, targets."""
        trained = self.trained(since)
        if self.scans < SCANS:
            self.trees.scan()
            self.scans += 1
        roots = [(root, list(parameters_of(root))) for root in self.trees.roots()]
        own = [one for one in roots if any(id(tensor) in trained for _, tensor in one[1])]
        others = [one for one in roots if one[1] and not any(id(tensor) in trained for _, tensor in one[1])]
        kinds, copies = {type(root) for root, _ in own}, [root for root, _ in others]
        wrapped = [child for root in copies if type(root) not in kinds for child in root.children()]
        self._copies = weakref.WeakSet([*copies, *wrapped])
        found: dict[str, Named] = {kind: {} for kind in (WEIGHTS, BUFFERS, MOMENTS, COPIES)}
        for prefix, (root, parameters) in zip(_prefixes([root for root, _ in own]), own, strict=True):
            found[WEIGHTS] |= {prefix + held.name: tensor for held, tensor in parameters}
            found[BUFFERS] |= {prefix + name: tensor for name, tensor in _kept_buffers(root)}
        for prefix, (_, parameters) in zip(_prefixes([root for root, _ in others], True), others, strict=True):
            found[COPIES] |= {prefix + held.name: tensor for held, tensor in parameters}
        names = {id(tensor): name for name, tensor in found[WEIGHTS].items()}
        for number, tensor in enumerate(trained.values()):
            name = names.setdefault(id(tensor), f"parameter {number}")
            found[WEIGHTS].setdefault(name, tensor)
        for optimizer in self.optimizers(since):
            for parameter, state in optimizer.state.items():
                for key, value in state.items() if isinstance(state, Mapping) else ():
                    if isinstance(value, Tensor) and isinstance(parameter, Tensor):
                        found[MOMENTS][f"{names.get(id(parameter), '?')} {key}"] = value
        return {kind: dict(list(named.items())[:MOST_TENSORS]) for kind, named in found.items()}

    def numbers(self, since: int = 0) -> dict[str, float]:
        """Learning rates, positions of schedules, loss scales, by kind and order; counters of the user's own by their names."""
        steered = dict.fromkeys(map(id, self.optimizers(since)), POSITION)
        shapes = [one.shape for one in self.trained(since).values()]
        found = counters(steered | dict.fromkeys(map(id, self._copies), UPDATES), shapes)
        for at, optimizer in enumerate(self.optimizers(since), 1):
            found[f"{LR} {at}"] = _number(optimizer.param_groups[0].get("lr"))
        for kind, known, read in ((SCHEDULE, self._schedulers, _epoch_of), (SCALE, self._scalers, _scale_of)):
            found |= {f"{kind} {at}": read(one) for at, one in enumerate(_living(known, since), 1)}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    @property
    def first_scheduler(self) -> str:
        """The class of the first schedule, "" where there is none."""
        return next((type(one).__name__ for one in _living(self._schedulers)), "")


def _living(known: list[_Made], since: int = 0) -> list[Any]:
    return [one for made in known if made.number > since and (one := made.ref()) is not None]


def digests_of(tensors: Named) -> dict[str, int]:
    """One for each tensor that can be read, of what lies on this rank. A device is waited for."""
    names = [name for name, tensor in tensors.items() if is_readable(tensor)]
    kept, size = [], 0
    for name in names:
        size += bytes_of(local(tensors[name]))
        if size > LARGEST_BYTES:
            break
        kept.append(name)
    chosen = [tensors[name] for name in kept]
    values = Digests().start(chosen)[0].values()
    return {name: finished(raw, kind) for name, raw, kind in zip(kept, values, kinds_of(chosen), strict=True)}


def by_parameter(moments: Mapping[str, int]) -> dict[str, int]:
    """One digest for all that an optimizer keeps for a parameter."""
    found: dict[str, int] = {}
    for name, value in sorted(moments.items()):
        parameter = name.rpartition(" ")[0]
        found[parameter] = extend(found.get(parameter, 0), value)
    return found


def fits_into(weights: Iterable[Tensor]) -> str:
    """`float16` or `bfloat16` when some elements of every weight are exactly what that type can hold, though theirs is wider."""
    wide = [local(one).detach() for one in weights if one.dtype in (torch.float32, torch.float64) and one.numel() >= 8]
    looked = [flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED] for one in wide[:64] if len(flat := one.reshape(-1))]
    looked = [one for one in looked if len(torch.unique(one)) > 2]  # zeros and ones fit into anything
    for kind in (torch.float16, torch.bfloat16) if looked else ():
        if all(torch.equal(one.to(kind).to(one.dtype), one) for one in looked):
            return str(kind).removeprefix("torch.")
    return ""


def trained_in(state: Any, trained: Iterable[Tensor]) -> tuple[int, int]:
    """How many tensors of a state lie where an optimizer changes them, and the place of the first among what it holds, from 1."""
    storages = {storage: place for place, one in enumerate(trained, 1) if (storage := storage_of(one))}
    tensors = [state] if isinstance(state, Tensor) else [one for _, one in tensors_in(state)]
    places = [place for one in tensors if (place := storages.get(storage_of(one)))]
    return len(places), places[0] if places else 0


def names_beside(state: Any, trained: Iterable[Tensor]) -> tuple[str, ...] | None:
    """The names of those tensors of a state that lie somewhere else, each once; None where they are more than `MOST_BESIDE`."""
    storages = {storage_of(one) for one in trained} - {0}
    names = tuple(dict.fromkeys(name for name, one in tensors_in(state) if storage_of(one) not in storages))
    return names if len(names) <= MOST_BESIDE else None


def holds_live(state: Any, live: Mapping[str, Named]) -> bool:
    """Whether what is being saved are the tensors that are trained, or copies of what they are now."""
    storages = {storage_of(one) for kind in (WEIGHTS, MOMENTS) for one in live[kind].values()} - {0}
    compared = 0
    for name, tensor in tensors_in(state):
        if storage_of(tensor) in storages:
            return True
        mine = live[WEIGHTS].get(plain_name(name).removeprefix("module."))
        if mine is not None and compared < COMPARED and mine.requires_grad:
            compared += 1
            if _same(tensor, mine):
                return True
    return False


def holds_copies(state: Any, copies: Named) -> bool:
    """Whether one of these copies of the model is being saved, as it lies there."""
    storages = {storage_of(one) for one in copies.values()} - {0}
    return bool(storages) and any(storage_of(one) in storages for _, one in tensors_in(state))


def _same(saved: Tensor, mine: Tensor) -> bool:
    """Some elements of a copy are what the tensor holds now, in the type of the copy."""
    one, other = local(saved).detach().reshape(-1), local(mine).detach().reshape(-1)
    if len(one) != len(other) or not len(one):
        return False
    every = max(1, len(one) // SAMPLED)
    return torch.equal(one[::every].cpu(), other[::every].to(one.dtype).cpu())


def rng_digest() -> str:
    """The states of the default generators of torch, Python and NumPy, in which nothing is drawn."""
    digest = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=8)
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        digest.update(f"{generator.initial_seed()} {generator.get_offset()}".encode())
    words = [digest.hexdigest(), f"{digest_of(repr(random.getstate())):016x}"]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state = numpy.get_state(legacy=True)
        words.append(f"{digest_of(repr((state[1].tobytes(), *state[2:]))):016x}")
    return " ".join(words)


def is_sharded(weights: Iterable[Tensor]) -> bool:
    """A DTensor of which this rank holds a part is among them."""
    specs = (getattr(one, "_spec", None) for one in weights)
    return any(placement.is_shard() for spec in specs if spec is not None for placement in spec.placements)


def shards_of(weight: Tensor) -> int:
    """Among how many ranks a DTensor is sharded; 1 for any other tensor."""
    spec = getattr(weight, "_spec", None)
    sizes = (
        [spec.mesh.size(dim) for dim, one in enumerate(spec.placements) if one.is_shard()] if spec is not None else []
    )
    return math.prod(sizes)


def _prefixes(roots: list[nn.Module], named: bool = False) -> list[str]:
    """Nothing before the names of an only root; else its class, and which one of that class it is."""
    if len(roots) == 1 and not named:
        return [""]
    counts: dict[str, int] = {}
    found = []
    for root in roots:
        word = type(root).__name__
        counts[word] = counts.get(word, 0) + 1
        found.append(f"{word} {counts[word]}: ")
    return found


def _kept_buffers(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Those that a state_dict holds."""
    for path, module in root.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield plain_name(f"{path}.{name}" if path else name), buffer


def storage_of(tensor: Tensor) -> int:
    """Where the elements lie; 0 where there are none, or nobody can say."""
    inner = local(tensor)
    try:
        return inner.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError) as error:
        hand_on(error)
        return 0


def storages_of(live: Mapping[str, Named]) -> set[int]:
    """Of all of them."""
    return {storage_of(tensor) for named in live.values() for tensor in named.values()}


def _number(value: Any) -> float:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else math.nan
    return float(value) if isinstance(value, int | float) else math.nan


def _epoch_of(scheduler: Any) -> float:
    return _number(getattr(scheduler, "last_epoch", None))


def _scale_of(scaler: Any) -> float:
    return _number(scaler.get_scale()) if scaler.is_enabled() else math.nan
