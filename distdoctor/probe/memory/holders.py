"""Who keeps tensors: the user's variables, the attributes of the user's objects and of models that a framework holds, the globals
of the user's modules.

A look reads what is there and calls nothing of the user's: no property, no `__iter__`, no `__len__` of a subclass. It ends after
a set time of its own thread. What it found are numbers and names; when it is over it holds no object.
"""

from __future__ import annotations

import functools
import gc
import queue
import sys
import types
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from distdoctor.probe import sites
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.memory import graphs
from distdoctor.probe.memory.graphs import Graph
from distdoctor.probe.memory.storages import Storages
from distdoctor.probe.variables import attributes_of, locals_of
from distdoctor.recording.trace.layout import HOOKS, HolderFlag, site_text

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_KEEPING = (Tensor, *_CONTAINERS)
_FRAMES = 64  # of each thread, outwards
_DEEPEST = 4  # objects within objects
_MANY = 2048  # elements; of longer containers a sample is looked at
_SAMPLE = 64
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PILED = 4  # hooks of one function on a module: somebody registers one more in every step, or evaluation
_SEVERAL = 2  # of which the number is written down already
_TRACEBACK: Any = BaseException.__traceback__  # a subclass may answer as it likes
_OWN_NAMES = frozenset(nn.Module().__dict__)  # what every module has


class Unit(NamedTuple):
    """One holder and what lies in it."""

    label: str
    kind: str
    site: str
    length: int
    tensors: int
    bytes: int
    graph: Graph
    flags: int


@dataclass
class HolderScan:
    """One look at everything that is held. `known` are storages that belong to the model and its optimizers.

    Of graphs, operations with a number below `since` do not count, and those below `before` count as old. With `libraries` the
    functions of libraries have variables too, and what these keep in attributes. `failure` is an error of ours that left a holder
    out.
    """

    known: Storages
    before: int = 0
    since: int = 0
    seconds: float = 0.02
    only_frames: bool = False
    libraries: bool = False
    models: Sequence[nn.Module] = ()  # whoever holds them: a trainer's model is no variable of the user's
    failure: Exception | None = None
    _seen: set[int] = field(default_factory=set)
    _deadline: float = 0.0
    _piles: dict[tuple[str, types.CodeType], list[Any]] = field(
        default_factory=dict
    )  # [label, hooks, most on one module]

    def units(self) -> list[Unit]:
        """Every holder with tensors in it."""
        self._deadline = thread_time() + self.seconds
        found: list[Unit] = []
        with torch._C.DisableTorchFunctionSubclass():  # a subclass of Tensor must not hear of it
            for label, value, site in self._roots():
                if thread_time() > self._deadline:
                    break
                try:
                    self._below(label, value, site, found)
                except Exception as error:
                    hand_on(error)
                    self.failure = self.failure if _is_theirs(error) else error
        for (_, code), (label, hooks, most) in self._piles.items():
            if most >= _SEVERAL:
                site = site_text(code.co_filename, 0, code.co_name)
                found.append(Unit(label, HOOKS, site, hooks, 0, 0, Graph(), 0))
        return found

    def _below(self, label: str, value: Any, site: str, found: list[Unit]) -> None:
        for path, one, where in self._leaves(label, value, site, 0):
            unit = self._unit(path, one, where)
            if unit is not None:
                found.append(unit)

    # -- where to begin ------------------------------------------------------------------------------------------------

    def _roots(self) -> Iterator[tuple[str, Any, str]]:
        for frame in list(sys._current_frames().values()):
            yield from self._of_stack(frame)
        if self.only_frames:
            return
        for model in self.models:
            yield type(model).__name__, model, site_text(users_class(model), 0, type(model).__name__)
        for name, path in users_modules().items():
            module = sys.modules.get(name)
            site = site_text(path, 0, "<module>")
            for label, value in list(getattr(module, "__dict__", {}).items()):
                if not label.startswith("__"):
                    yield label, value, site

    def _of_stack(self, frame: types.FrameType | None) -> Iterator[tuple[str, Any, str]]:
        for _ in range(_FRAMES):
            if frame is None:
                return
            if (self.libraries or sites.is_users(frame)) and frame.f_code.co_name != "<module>":
                site = sites.site_of(frame)
                yield from ((label, value, site) for label, value in locals_of(frame))
            elif frame.f_code.co_name == "<module>" and sites.is_users(frame):
                site = sites.site_of(frame)
                for label, value in list(frame.f_locals.items()):
                    if not label.startswith("__"):
                        yield label, value, site
            frame = frame.f_back

    # -- down to what holds --------------------------------------------------------------------------------------------

    def _leaves(self, label: str, value: Any, site: str, depth: int) -> Iterator[tuple[str, Any, str]]:
        """Tensors and containers below a variable, with the path to them and where to look for what puts things there."""
        kind = type(value)  # isinstance would ask a proxy for its __class__, which is the user's code
        if id(value) in self._seen or issubclass(kind, (types.ModuleType, str, bytes, int, float)):
            return
        if issubclass(kind, _KEEPING):
            self._seen.add(id(value))
            yield label, value, site
            return
        if depth >= _DEEPEST or issubclass(kind, Optimizer):
            return
        self._seen.add(id(value))
        if issubclass(kind, type):
            yield from self._of_class(value, depth)
        elif kind is functools._lru_cache_wrapper:
            for inner in gc.get_referents(value):  # lru_cache(maxsize=None) keeps results in a plain dictionary
                if type(inner) is dict and inner is not attributes_of(value):
                    yield from self._leaves(f"{label} (lru_cache)", inner, site, depth + 1)
        elif issubclass(kind, queue.Queue):
            inside = attributes_of(value)
            if not inside.get("maxsize"):
                yield from self._leaves(f"{label} (Queue)", inside.get("queue"), site, depth + 1)
        elif kind is types.MethodType:
            yield from self._leaves(f"{label}.__self__", value.__self__, site, depth + 1)
        elif kind is types.FunctionType:
            if value.__closure__ and sites.belongs_to_user(value.__code__.co_filename):
                for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=False):
                    try:
                        yield from self._leaves(name, cell.cell_contents, site, depth + 1)
                    except ValueError as error:  # not assigned yet
                        hand_on(error)
                        continue
        elif issubclass(kind, nn.Module):
            yield from self._of_module(label, value, site, depth)
        elif (path := users_class(value)) or (self.libraries and not depth):
            there = site if not path or site.startswith(f"{path}\0") else site_text(path, 0, kind.__name__)
            for name, inner in list(attributes_of(value).items()):
                yield from self._leaves(f"{label}.{name}", inner, there, depth + 1)

    def _of_class(self, owner: type, depth: int) -> Iterator[tuple[str, Any, str]]:
        """What the user keeps on a class of the user's own."""
        module = sys.modules.get(owner.__module__) if type(owner.__module__) is str else None
        path = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(path, str) and sites.belongs_to_user(path):
            site = site_text(path, 0, owner.__name__)
            for name, inner in list(type.__getattribute__(owner, "__dict__").items()):
                if issubclass(type(inner), _KEEPING):
                    yield from self._leaves(f"{owner.__name__}.{name}", inner, site, depth + 1)

    def _of_module(self, label: str, root: nn.Module, site: str, depth: int) -> Iterator[tuple[str, Any, str]]:
        """What the user has put on modules, besides parameters, buffers and children."""
        for path, module in root.named_modules():
            if module is not root and id(module) in self._seen:
                continue
            self._seen.add(id(module))
            own = attributes_of(module)
            yield from self._of_hooks(f"{label}.{path}" if path else label, own)
            if len(own) > len(_OWN_NAMES):
                written = users_class(module)
                there = site if not written or site.startswith(f"{written}\0") else site_text(written, 0, "")
                prefix = f"{label}.{path}" if path else label
                for name in own.keys() - _OWN_NAMES:
                    if issubclass(type(own[name]), _KEEPING):
                        yield from self._leaves(f"{prefix}.{name}", own[name], there, depth + 1)

    def _of_hooks(self, label: str, own: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
        """The objects whose one method is registered on a module again and again, with what they keep. Counts all hooks."""
        for name in _HOOKS:
            hooks = own.get(name)
            if not hooks:
                continue
            by_code: dict[types.CodeType, list[Any]] = {}
            for hook in dict.values(hooks):
                code, owner = _written_as(hook)
                if code is not None and sites.belongs_to_user(code.co_filename):
                    by_code.setdefault(code, []).append(owner)
            for code, owners in by_code.items():
                pile = self._piles.setdefault((name, code), [f"{label}.{name}", 0, 0])
                pile[1] += len(owners)
                pile[2] = max(pile[2], len(owners))
                if len({id(one) for one in owners if one is not None}) >= _PILED:
                    yield f"{label}.{name}", owners, site_text(code.co_filename, 0, code.co_name)

    # -- what lies in it -----------------------------------------------------------------------------------------------

    def _unit(self, label: str, value: Any, site: str) -> Unit | None:
        tensors: list[Tensor] = []
        scale = [1.0]
        self._gather(value, tensors, scale, 0)
        if not tensors:
            return None
        storages = Storages(self.known.seen)
        counted = int(sum(map(storages.add, tensors)) * scale[0])
        roots = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        graph = (
            graphs.look(roots, storages, before=self.before, since=self.since, deadline=self._deadline)
            if roots
            else Graph()
        )
        bounded = type(value) is deque and value.maxlen is not None
        flags = (HolderFlag.BOUNDED if bounded else 0) | (HolderFlag.GRAPH if roots else 0)
        flags |= HolderFlag.PART if graph.capped else 0
        length = _length(value) if issubclass(type(value), _CONTAINERS) else 1
        return Unit(label, type(value).__name__, site, length, int(len(tensors) * scale[0]), counted, graph, int(flags))

    def _gather(self, value: Any, tensors: list[Tensor], scale: list[float], depth: int) -> None:
        """Put the tensors below `value` into a list; False when not everything was looked at."""
        if issubclass(type(value), Tensor):
            tensors.append(value)
            return
        if issubclass(type(value), _CONTAINERS):
            inside = _elements(value)
        elif issubclass(type(value), BaseException):
            inside = _in_frames_of(value)
        elif users_class(value):
            inside = list(attributes_of(value).values())
        else:
            return
        if depth >= _DEEPEST or thread_time() > self._deadline:
            return
        if len(inside) > _MANY:
            scale[0] = max(scale[0], len(inside) / _SAMPLE)
            inside = [inside[i * len(inside) // _SAMPLE] for i in range(_SAMPLE)]
        for one in inside:
            self._gather(one, tensors, scale, depth + 1)


_known_modules: set[str] = set()
_users_modules: dict[str, str] = {}


def users_modules() -> dict[str, str]:
    """The user's own modules by name, with their files. A module is judged once: there are thousands, and hardly any is new."""
    for name in [name for name in list(sys.modules) if name not in _known_modules]:
        _known_modules.add(name)
        path = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
        if isinstance(path, str) and path.endswith(".py") and name != "__mp_main__" and sites.belongs_to_user(path):
            _users_modules[name] = path
    return _users_modules


def users_class(value: Any) -> str:
    """The file in which the user wrote the class of this object, "" when it is nobody's own."""
    module = sys.modules.get(type(value).__module__)
    path = getattr(module, "__dict__", {}).get("__file__")
    return path if isinstance(path, str) and sites.belongs_to_user(path) else ""


def _is_theirs(error: Exception) -> bool:
    """Whether a holder raised it that another thread is at work on, or a module that was never set up; all else is ours."""
    return isinstance(error, (RuntimeError, ReferenceError)) or isinstance(getattr(error, "obj", None), nn.Module)


def _written_as(hook: Any) -> tuple[types.CodeType | None, Any]:
    """(the code of a hook, the object whose method it is): of a function, a method, or a `partial` of one."""
    while type(hook) is functools.partial:
        hook = hook.func
    owner = hook.__self__ if type(hook) is types.MethodType else None
    code = getattr(hook.__func__ if type(hook) is types.MethodType else hook, "__code__", None)
    return (code if type(code) is types.CodeType else None), owner


def _length(value: Any) -> int:
    return next(kind.__len__(value) for kind in _CONTAINERS if issubclass(type(value), kind))


def _in_frames_of(error: BaseException) -> list[Any]:
    """What an exception that somebody keeps holds on to: the variables of the functions that it came through."""
    found: list[Any] = []
    trace = _TRACEBACK.__get__(error)
    while trace is not None:
        if sites.is_users(trace.tb_frame):
            found += [one for _, one in locals_of(trace.tb_frame) if issubclass(type(one), _KEEPING)]
        trace = trace.tb_next
    return found


def _elements(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(dict.values(value))
    kind: Any = next(kind for kind in _CONTAINERS if issubclass(type(value), kind))
    return list(kind.__iter__(value))
