"""All files of one call together: what a name means, which function a call reaches, who calls whom, where a value was made."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from distdoctor.diagnosis.source.source_file import Binding, Scope, SourceFile, argument, dotted
from distdoctor.lint.classes import MOST_STEPS as CLASS_STEPS
from distdoctor.lint.classes import Classes, OwnClass

_Result = TypeVar("_Result")

MOST_STEPS = 9  # through assignments, parameters and returns; a library of wrappers needs eight

DDP, FSDP, DP = "ddp", "fsdp", "dp"
SAMPLER, LOADER, OPTIMIZER, SCALER, ACCELERATOR = "sampler", "loader", "optimizer", "scaler", "accelerator"
_KINDS = {
    "DistributedDataParallel": DDP,
    "FullyShardedDataParallel": FSDP,
    "fully_shard": FSDP,
    "DataParallel": DP,
    "DistributedSampler": SAMPLER,
    "DataLoader": LOADER,
    "GradScaler": SCALER,
}
# Libraries that shard the data and wrap models by themselves; most of them set epochs as well.
CARING = frozenset(
    {
        "accelerate",
        "lightning",
        "pytorch_lightning",
        "deepspeed",
        "ignite",
        "composer",
        "ray",
        "megatron",
        "fairscale",
    }
)
NOT_EPOCHS = (
    "deepspeed"  # of these, the one that shards and wraps but calls set_epoch of no sampler (0.19, none of its files)
)


# What a method says that takes all ranks (`reduce_parameters`), and how names begin that are torch's, or a library's, too.
_OF_RANKS = ("reduce", "sync", "broadcast", "gather", "average_grad", "average_param")
_OF_TORCH = ("all_", "no_sync", "no_backward_sync", "reduce_scatter", "broadcast_object", "broadcast_buffers",
             "broadcast_tensors", "broadcast_to", "gather_object", "gather_for", "set_", "__")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Made:
    """Where a value was made: the call, and the scope that it stands in."""

    kind: str
    call: ast.Call
    scope: Scope


@dataclass(frozen=True, eq=False)
class CallSite:
    """A call of one of our functions."""

    call: ast.Call
    scope: Scope


@dataclass(eq=False)
class ParsedFiles:
    """The parsed files. Lookups are done once and kept."""

    files: list[SourceFile]
    _targets: dict[ast.Call, Scope | None] = field(default_factory=dict)
    _kept: dict[tuple[int, str, int], tuple[Made, ...]] = field(default_factory=dict)  # (scope, name, steps left)
    _leading: dict[Callable[..., object], set[Scope]] = field(default_factory=dict)
    _once: dict[Callable[..., object], Any] = field(default_factory=dict)

    @cached_property
    def classes(self) -> Classes:
        return Classes(self)

    @property
    def scopes(self) -> Iterator[Scope]:
        for file in self.files:
            yield from file.scopes

    @cached_property
    def _by_word(self) -> dict[str, list[SourceFile]]:
        found = defaultdict(list)
        for file in self.files:
            if file.words:
                found[file.words[-1]].append(file)
        return found

    def meaning(self, node: ast.AST, file: SourceFile) -> str:
        """The dotted name that an expression stands for: `dist.all_reduce` -> `torch.distributed.all_reduce`; else as written."""
        name = dotted(node)
        first, dot, rest = name.partition(".")
        known = file.imports.get(first)
        return f"{known}{dot}{rest}" if known else name

    def is_torch(self, node: ast.AST, file: SourceFile, *words: str) -> bool:
        """Whether an expression is torch's own thing with one of these last words."""
        name = self.meaning(node, file)
        return name.startswith("torch.") and name.rpartition(".")[2] in words

    def module_named(self, name: str, asking: SourceFile) -> SourceFile | None:
        """The file that an import of `name` means: the one that shares most folders with the file that asks."""
        level = len(name) - len(name.lstrip("."))
        words = tuple(part for part in name.lstrip(".").split(".") if part)
        if not words and not level:
            return None
        if level:
            here = asking.words if asking.path.endswith("__init__.py") else asking.words[:-1]
            wanted = (*here[: len(here) - level + 1], *words)
            return next((f for f in self._by_word.get(wanted[-1], ()) if f.words == wanted), None) if wanted else None
        near = [f for f in self._by_word.get(words[-1], ()) if f.words[-len(words) :] == words]
        return max(near, key=lambda file: _shared(file.words, asking.words), default=None)

    def imported_by(self, file: SourceFile) -> list[SourceFile]:
        """The files of this program that a file imports from."""
        names = [name for full in file.imports.values() for name in (full, full.rpartition(".")[0]) if name.strip(".")]
        names += file.starred
        return [other for name in dict.fromkeys(names) if (other := self.module_named(name, file)) is not None]

    def target(self, call: ast.Call, scope: Scope) -> Scope | None:
        """The function that a call reaches, None when it is none of ours."""
        if call not in self._targets:
            self._targets[call] = self.function(call.func, scope)
        return self._targets[call]

    def targets(self, call: ast.Call, scope: Scope) -> list[Scope]:
        """The functions that a call may reach: of an abstract method, those of the derived classes."""
        target = self.target(call, scope)
        return self.classes.in_place_of(target) if target is not None else []

    def function(self, node: ast.expr, scope: Scope, steps: int = CLASS_STEPS) -> Scope | None:
        """The function that an expression names, seen from a scope; `steps` to the class of the value whose method it is."""
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "partial" and node.args:
            return self.function(node.args[0], scope, steps)
        name = dotted(node)
        owner, _, word = name.rpartition(".")
        if not name:
            return None
        if owner in ("self", "cls") and scope.class_name:
            found = self.classes.method(OwnClass(scope.class_name, scope.file), word)
            return found or self._method_of_value(name, "__call__", scope, steps)
        here: Scope | None = scope
        while here is not None and not owner:
            if word in here.functions:
                return here.functions[word]
            here = here.outer
        if name.partition(".")[0] in scope.file.imports or (not owner and scope.file.starred):
            home = self.home(name, scope.file)
            return home[0].module.functions.get(home[1]) if home is not None else self._method_of_class(name, scope)
        found = self._method_of_value(owner or word, word if owner else "__call__", scope, steps)
        return found or (self._only_method(word, scope.file) if owner else None)

    def _only_method(self, word: str, asking: SourceFile) -> Scope | None:
        """Of a value that nobody can trace, the method with a name that speaks of ranks, which one class alone has: of those that
        the file imports, or else of all."""
        methods = self._methods_of_ranks.get(word, [])
        if len(methods) < 2:
            return methods[0] if methods else None
        homes = (self.home(name, asking) for name in asking.imports)
        near = {one for home in homes if home and (one := home[0].classes.get(home[1], {}).get(word))}
        return near.pop() if len(near) == 1 else None

    @cached_property
    def _methods_of_ranks(self) -> dict[str, list[Scope]]:
        found = defaultdict(list)
        for methods in (one for file in self.files for one in file.classes.values()):
            for word, method in methods.items():
                if "_" in word and any(part in word for part in _OF_RANKS) and not word.startswith(_OF_TORCH):
                    found[word].append(method)
        return found

    def home(self, name: str, asking: SourceFile) -> tuple[SourceFile, str] | None:
        """The file that defines an imported function or class, and what it is called there."""
        first, _, rest = name.partition(".")
        if first in asking.imports:
            return self._home(f"{asking.imports[first]}.{rest}".rstrip("."), asking)
        found = (self._home(_joined(module, name), asking) for module in asking.starred)
        return next((one for one in found if one is not None), None)

    def _home(self, name: str, asking: SourceFile, steps: int = 4) -> tuple[SourceFile, str] | None:
        module, _, word = name.rpartition(".")
        if not module.strip("."):
            module = "." * name.count(".")
        file = self.module_named(module, asking) if steps else None
        if file is None:
            return None
        if word in file.module.functions or word in file.bases:
            return file, word
        if file is asking or not file.path.endswith("__init__.py"):
            return None
        further = [file.imports[word]] if word in file.imports else [_joined(one, word) for one in file.starred]
        found = (self._home(one, file, steps - 1) for one in further if one != name)
        return next((one for one in found if one is not None), None)

    def _method_of_class(self, name: str, scope: Scope) -> Scope | None:
        """`Trainer.run` of an imported class."""
        owner, _, word = name.rpartition(".")
        home = self.home(owner, scope.file) if owner else None
        return home[0].classes.get(home[1], {}).get(word) if home is not None else None

    def _method_of_value(self, name: str, word: str, scope: Scope, steps: int) -> Scope | None:
        """`trainer.train` where `trainer = Trainer(...)`, and `save(...)` where `save = Saver(...)`."""
        found = (self.classes.method(one, word) for one in self.classes.of_name(name, scope, steps))
        return next((one for one in found if one is not None), None)

    @cached_property
    def _callers(self) -> dict[Scope, list[CallSite]]:
        found = defaultdict(list)
        for scope in self.scopes:
            for call in scope.calls:
                targets = self.targets(call, scope)
                if not targets and _hands_over(call):
                    targets = [one for one in [self.function(call.args[0], scope)] if one is not None]
                if not targets and (made := self.classes.named(call.func, scope.file)) is not None:
                    targets = [one for one in [self.classes.method(made, "__init__")] if one is not None]
                for target in targets:
                    if target is not scope:
                        found[target].append(CallSite(call, scope))
        return found

    def callers(self, scope: Scope) -> list[CallSite]:
        """The calls that reach a function; `mp.spawn(main)` is one."""
        return self._callers.get(scope, [])

    def once(self, ask: Callable[[ParsedFiles], _Result]) -> _Result:
        """What a function says of the program, which is worked out once."""
        if ask not in self._once:
            self._once[ask] = ask(self)
        result: _Result = self._once[ask]
        return result

    def leading_to(self, matters: Callable[[ast.Call, Scope, ParsedFiles], object]) -> set[Scope]:
        """The functions that make a call which matters, and those from which calls lead to one. It is worked out once."""
        if matters not in self._leading:
            front = [one for one in self.scopes if any(matters(call, one, self) for call in one.calls)]
            found = self._leading[matters] = set(front)
            while front:
                front = list({site.scope for one in front for site in self.callers(one)} - found)
                found.update(front)
        return self._leading[matters]

    def reached(self, scope: Scope, steps: int = 3, calls: Iterable[ast.Call] | None = None) -> list[Scope]:
        """The functions that a scope's calls (or just `calls`) reach, within so many steps."""
        found: list[Scope] = []
        front = [(scope, calls if calls is not None else scope.calls)]
        for _ in range(steps):
            following: list[tuple[Scope, Iterable[ast.Call]]] = []
            for here, ones in front:
                for target in (one for call in ones for one in self.targets(call, here)):
                    if target is not scope and target not in found:
                        found.append(target)
                        following.append((target, target.calls))
            front = following
        return found

    def is_generator(self, scope: Scope) -> bool:
        """A context manager or generator: what it does is spread around its caller's code."""
        return scope in self._generators

    @cached_property
    def _generators(self) -> set[Scope]:
        return {
            file.scope_of[one]
            for file in self.files
            if "yield" in file.text
            for one in file.nodes(ast.Yield, ast.YieldFrom)
        }

    def bindings(self, name: str, scope: Scope) -> list[tuple[Binding, Scope]]:
        """Everything that a name is bound to, in the nearest scope that binds it; fields over all methods of their class."""
        if name.startswith("self.") and scope.class_name:
            fields = scope.file.fields
            return (
                fields[scope.class_name][name]
                if scope.class_name in fields and name in fields[scope.class_name]
                else []
            )
        here: Scope | None = scope
        while here is not None:
            if name in here.bindings:
                return [(binding, here) for binding in here.bindings[name]]
            if name in here.parameters:
                return []
            here = here.outer
        return []

    def made(self, node: ast.expr | None, scope: Scope) -> tuple[Made, ...]:
        """The calls of torch that may have made this value: through names, fields, parameters, returns and both sides of `if`."""
        return tuple(dict.fromkeys(self._made(node, scope, MOST_STEPS))) if node is not None else ()

    def kinds(self, node: ast.expr | None, scope: Scope) -> set[str]:
        return {one.kind for one in self.made(node, scope)}

    def _made(self, node: ast.expr, scope: Scope, steps: int, item: int = -1) -> tuple[Made, ...]:
        if steps <= 0:
            return ()
        if isinstance(node, ast.Call):
            return self._made_by_call(node, scope, steps, item)
        if isinstance(node, ast.IfExp):
            return self._made(node.body, scope, steps - 1) + self._made(node.orelse, scope, steps - 1)
        if isinstance(node, ast.BoolOp):
            return tuple(one for value in node.values for one in self._made(value, scope, steps - 1))
        if isinstance(node, ast.Tuple) and 0 <= item < len(node.elts):
            return self._made(node.elts[item], scope, steps - 1)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and item < 0:
            return self._made_in_dict(node.value, node.slice.value, scope, steps)
        name = dotted(node)
        if not name or item >= 0:
            return ()
        key = (id(scope), name, steps)  # a name that is bound to itself ends with the steps
        if key not in self._kept:
            found = self._made_by_name(name, scope, steps - 1)
            self._kept[key] = tuple({(id(one.call), one.kind): one for one in found}.values())
        return self._kept[key]

    def _made_in_dict(self, node: ast.expr, key: object, scope: Scope, steps: int) -> tuple[Made, ...]:
        """`loaders["train"]`: what the dict was written with, or what was put there later, wherever the dict came from."""
        if steps <= 0:
            return ()
        if isinstance(node, ast.Dict):
            given = [value for name, value in zip(node.keys, node.values, strict=True) if is_key(name, key)]
            return tuple(one for value in given for one in self._made(value, scope, steps - 1))
        if isinstance(node, ast.Call) and (target := self.target(node, scope)) is not None:
            values = [one.value for one in target.returns if one.value is not None]
            return tuple(one for value in values for one in self._made_in_dict(value, key, target, steps - 1))
        name = dotted(node)
        place = (id(scope), f"{name}[{key!r}]", steps)
        if name and place not in self._kept:
            found = self._made_in_named_dict(name, key, scope, steps)
            self._kept[place] = tuple({(id(one.call), one.kind): one for one in found}.values())
        return self._kept[place] if name else ()

    def _made_in_named_dict(self, name: str, key: object, scope: Scope, steps: int) -> Iterator[Made]:
        for binding, where in self.bindings(f"{name}[{key!r}]", scope):
            yield from self._made(binding.value, where, steps - 1)
        for binding, where in self.bindings(name, scope):
            if not binding.looped and binding.item < 0:
                yield from self._made_in_dict(binding.value, key, where, steps - 1)
        for site in self.callers(scope)[:8] if name in scope.parameters else ():
            given = given_for(site.call, scope, name)
            if given is not None:
                yield from self._made_in_dict(given, key, site.scope, steps - 1)

    def _made_by_name(self, name: str, scope: Scope, steps: int) -> tuple[Made, ...]:
        found: list[Made] = []
        for binding, where in self.bindings(name, scope):
            if not binding.looped and not isinstance(binding.statement, ast.AugAssign):
                found += self._made(binding.value, where, steps, binding.item)
        for sharded in scope.calls if steps > 0 else ():  # no nearer than what the name is bound to
            if sharded.args and dotted(sharded.args[0]) == name and self.kind_of_call(sharded, scope.file) == FSDP:
                found.append(Made(FSDP, sharded, scope))
        if name in scope.parameters:
            for site in self.callers(scope)[:8]:
                given = given_for(site.call, scope, name)
                if given is not None:
                    found += self._made(given, site.scope, steps)
        elif "." in name and not found and name.split(".")[-1] in ("sampler", "batch_sampler"):
            found += self._sampler_of(name.rpartition(".")[0], scope, steps)
        if not found and name.count(".") == 1 and not name.startswith("self."):
            found += self._made_by_field(name.partition(".")[2], steps)
        return tuple(found)

    def _made_by_field(self, word: str, steps: int) -> Iterator[Made]:
        """The loader `data.train_loader` of an object that nobody can trace, where one class alone has a field of that name."""
        owners = self._owners.get(f"self.{word}", [])
        for binding, where in owners[0] if len(owners) == 1 else ():
            if not binding.looped:
                yield from (one for one in self._made(binding.value, where, steps, binding.item) if one.kind == LOADER)

    @cached_property
    def _owners(self) -> dict[str, list[list[tuple[Binding, Scope]]]]:
        """What a field is bound to, by class, of all classes that have one of that name."""
        found = defaultdict(list)
        for fields in (one for file in self.files for one in file.fields.values()):
            for name, bound in fields.items():
                found[name].append(bound)
        return found

    def _sampler_of(self, loader: str, scope: Scope, steps: int) -> list[Made]:
        """`loader.sampler`: what the DataLoader was given."""
        return [
            one
            for made in self._made(ast.parse(loader, mode="eval").body, scope, steps)
            if made.kind == LOADER and (given := argument(made.call, 3, "sampler")) is not None
            for one in self._made(given, made.scope, steps - 1)
        ]

    def _made_by_call(self, call: ast.Call, scope: Scope, steps: int, item: int) -> tuple[Made, ...]:
        kind = self.kind_of_call(call, scope.file)
        if kind and item < 0:
            return (Made(kind, call, scope),)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda", "train", "eval", "float"):
            return self._made(call.func.value, scope, steps - 1)
        if self.meaning(call.func, scope.file) == "torch.compile" and call.args:
            return self._made(call.args[0], scope, steps - 1)
        values = [(one.value, target) for target in self.targets(call, scope) for one in target.returns]
        return tuple(
            one for value, target in values if value is not None for one in self._made(value, target, steps - 1, item)
        )

    def kind_of_call(self, call: ast.Call, file: SourceFile) -> str:
        """What a call makes, by the name that it calls: torch's own wrappers, loaders, samplers, optimizers and scalers."""
        name = self.meaning(call.func, file)
        word = name.rpartition(".")[2]
        if name.startswith("torch."):
            if word in _KINDS:
                return _KINDS[word]
            return OPTIMIZER if name.startswith("torch.optim.") and word[:1].isupper() and "lr_" not in name else ""
        return ACCELERATOR if name in ("accelerate.Accelerator", "Accelerator") else ""

    def cared_for(self, file: SourceFile) -> bool:
        """Whether the file imports a library that wraps models and shards the data by itself."""
        return bool(self._caring(file))

    def epochs_are_set(self, file: SourceFile) -> bool:
        """Whether the file imports a library that sets epochs by itself."""
        return bool(self._caring(file) - {NOT_EPOCHS})

    def _caring(self, file: SourceFile) -> set[str]:
        return {name.partition(".")[0] for name in file.imports.values()} & CARING

    def is_distributed(self, file: SourceFile) -> bool:
        """Whether the file takes part in a job of several ranks: it joins a group, or wraps a model for one."""
        return any(
            self.kind_of_call(call, file) in (DDP, FSDP) or self.is_torch(call.func, file, "init_process_group")
            for scope in file.scopes
            for call in scope.calls
        )


def is_key(node: ast.expr | None, key: object) -> bool:
    """Whether the key of a dict is this literal."""
    return isinstance(node, ast.Constant) and type(node.value) is type(key) and node.value == key


def given_for(call: ast.Call, target: Scope, parameter: str) -> ast.expr | None:
    """The argument that a call gives for a parameter."""
    named = next((one.value for one in call.keywords if one.arg == parameter), None)
    if named is not None:
        return named
    names = target.parameters
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    if parameter not in names or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    place = names.index(parameter)
    return call.args[place] if place < len(call.args) and not _hands_over(call) else None


def _hands_over(call: ast.Call) -> bool:
    """`mp.spawn(main, args=...)`: the first argument is called."""
    return bool(call.args) and dotted(call.func).rpartition(".")[2] in (
        "spawn",
        "start_processes",
        "checkpoint_wrapper",
    )


def _joined(module: str, name: str) -> str:
    """`pkg.name`, and `.name` of the module `.`."""
    return f"{module}{name}" if module.endswith(".") else f"{module}.{name}"


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
