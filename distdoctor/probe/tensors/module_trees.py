"""What the user calls the parameters: names as in `named_parameters`, for optimizers that hold parameters without names.

Modules make themselves known when they register a parameter or a child. Nothing is kept alive.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from distdoctor.probe import sites, wrappers
from distdoctor.probe.variables import attributes_of, locals_of

MOST_SITES = 10_000
# What wrappers put between a module and the names that its author gave.
_WRAPPING = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_NORMALISATIONS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class HeldParameter(NamedTuple):
    """Who holds a parameter or buffer: its name, and the class of the module that it belongs to."""

    name: str
    owner: str
    normalisation: bool = False


class ModuleTrees:
    """The modules of this process, as far as they live. `guarded`: the guard of the stream that wants to know them."""

    def __init__(self, guarded: Callable[[Any], Any]) -> None:
        self._guarded = guarded
        self._modules: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self.copied = 0
        """Modules that came by copying or unpickling so far, and those that were made: whoever looks for copies looks at it."""
        self._sites: dict[int, str] = {}  # id of a module that was copied -> where
        self.registered: Callable[[nn.Module, str, Any], None] | None = None
        """Called with everything that a module takes in: parameters, and modules that hold some."""

    def install(self) -> None:
        """Hear of every module from now on."""
        nn.modules.module.register_module_module_registration_hook(self._guarded(self._child))
        nn.modules.module.register_module_parameter_registration_hook(self._guarded(self._parameter))
        wrappers.lay(nn.Module, "__setstate__", self._around_setstate)

    def _around_setstate(self, original: Any) -> Any:
        """What `deepcopy` and `torch.load` make never registers anything: it comes with its state."""

        @self._guarded
        def copied(module: nn.Module) -> None:
            self._modules[id(module)] = module
            self.copied += 1
            if len(self._sites) < MOST_SITES:
                self._sites[id(module)] = sites.user_site()

        def __setstate__(module: Any, state: Any) -> None:
            original(module, state)
            copied(module)

        return __setstate__

    def made_at(self, module: nn.Module) -> str:
        """The user's line that copied a module, "" when it was not copied."""
        return self._sites.get(id(module), "")

    def variable_of(self, module: nn.Module) -> str:
        """What the functions at work call a module: the name of a variable, or of an attribute of one; "" when none does."""
        frame = sites.user_frame(sys._getframe(1))
        while frame is not None:
            for name, value in locals_of(frame) if sites.is_users(frame) else ():
                if value is module:
                    return name
                for attribute, inner in list(attributes_of(value).items())[:64]:
                    if inner is module:
                        return f"{name}.{attribute}"
                children = attributes_of(value).get("_modules") if isinstance(value, nn.Module) else None
                for attribute, inner in (children or {}).items():
                    if inner is module:
                        return f"{name}.{attribute}"
            frame = frame.f_back
        return ""

    def path_of(self, module: nn.Module) -> str:
        """What the root right above a module calls it, `Agent.target`; "" where none does."""
        above = ((root, name) for root in self.roots() for name, child in root._modules.items() if child is module)
        return next((f"{type(root).__name__}.{name}" for root, name in above), "")

    def _child(self, module: nn.Module, name: str, child: Any) -> None:
        self._modules[id(module)] = module
        if self.registered is not None and child is not None:
            self.registered(module, name, child)

    def _parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        if id(module) not in self._modules:
            self._modules[id(module)] = module
            self.copied += 1
        if self.registered is not None and parameter is not None:
            self.registered(module, name, parameter)

    def roots(self) -> list[nn.Module]:
        """Modules that belong to no other one. DistributedDataParallel counts as no module: what it wraps is the root."""
        known = list(self._modules.values())
        inner = {
            id(child)
            for module in known
            if not isinstance(module, nn.parallel.DistributedDataParallel)
            for child in module._modules.values()
            if child is not None
        }
        found = [module for module in known if id(module) not in inner]
        return [module for module in found if not isinstance(module, nn.parallel.DistributedDataParallel)]

    def names(self, wanted: Iterable[Tensor]) -> dict[int, HeldParameter]:
        """Who holds each of these parameters, by `id`. Those that no module holds are left out."""
        ids = {id(parameter) for parameter in wanted}
        found = self._search(ids)
        if len(found) < len(ids):  # a copied or unpickled module never registered: look through everything, once
            self.scan()
            found = self._search(ids)
        return found

    def scan(self) -> None:
        """Find modules that never registered anything: copied and unpickled ones. Looks at every object of the process."""
        for thing in gc.get_objects():
            # By its type: `isinstance` asks some objects for their `__class__`, and torch's deprecated ones warn then.
            if issubclass(type(thing), nn.Module):
                self._modules.setdefault(id(thing), thing)

    def _search(self, ids: set[int]) -> dict[int, HeldParameter]:
        found: dict[int, HeldParameter] = {}
        roots = self._holding(ids)
        for root, prefix in zip(roots, self.prefixes(roots), strict=True):
            for name, owner, parameter in _tensors_of(root, "_parameters"):
                if id(parameter) in ids and id(parameter) not in found:
                    found[id(parameter)] = HeldParameter(prefix + name, type(owner).__name__)
        return found

    def prefixes(self, roots: Sequence[nn.Module]) -> list[str]:
        """What the names in each of these trees begin with: nothing, or, of those that use one name twice, what the program calls
        the root: `critic.`"""
        names = [
            {name for where in ("_parameters", "_buffers") for name, *_ in _tensors_of(root, where)} for root in roots
        ]
        count = Counter(name for own in names for name in own)
        words = [
            (self.variable_of(root).rpartition(".")[2] or type(root).__name__)
            if any(count[name] > 1 for name in own)
            else ""
            for root, own in zip(roots, names, strict=True)
        ]
        again = [words[:number].count(word) + 1 for number, word in enumerate(words)]
        return [
            f"{word}{f' {nth}' if nth > 1 else ''}." if word else "" for word, nth in zip(words, again, strict=True)
        ]

    def of(self, parameters: Iterable[Tensor]) -> list[nn.Module]:
        """The roots that hold any of these parameters."""
        return self._holding({id(parameter) for parameter in parameters})

    def _holding(self, ids: set[int]) -> list[nn.Module]:
        return [root for root in self.roots() if any(id(p) in ids for _, _, p in _tensors_of(root, "_parameters"))]


def parameters_of(root: nn.Module) -> Iterator[tuple[HeldParameter, Tensor]]:
    """Every parameter of a module tree, once."""
    for name, owner, parameter in _tensors_of(root, "_parameters"):
        yield HeldParameter(name, type(owner).__name__), parameter


def buffers_of(root: nn.Module) -> Iterator[tuple[HeldParameter, Tensor]]:
    """Every buffer of a module tree that its state_dict holds, once: others are caches, which each rank fills for itself."""
    for name, owner, buffer in _tensors_of(root, "_buffers"):
        if name.rpartition(".")[2] in owner._non_persistent_buffers_set:
            continue
        yield HeldParameter(name, type(owner).__name__, isinstance(owner, _NORMALISATIONS)), buffer


def _tensors_of(root: nn.Module, where: str) -> Iterator[tuple[str, nn.Module, Tensor]]:
    seen: set[int] = set()
    for path, module in root.named_modules():
        for name, tensor in getattr(module, where).items():
            if tensor is not None and id(tensor) not in seen and not is_lazy(tensor):
                seen.add(id(tensor))
                yield plain_name(f"{path}.{name}" if path else name), module, tensor


def plain_name(name: str) -> str:
    """The name that the author gave, without what wrappers put into it."""
    for wrapping in _WRAPPING:
        name = name.replace(wrapping, "")
    return name
