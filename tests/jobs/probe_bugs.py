"""A training under a probe with a bug planted in it, and what became of the training.

Every function of distdoctor.probe gets a line at its top that may raise; where a function keeps errors to itself, the line stands
inside of that. What is left out: the few functions that keep trouble away (`UNTOUCHED`), and those that stand in the place of one
of torch's, whose own lines are few.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.machinery
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, ClassVar

import torch.distributed as dist

from distdoctor.recording.trace.probe_settings import ProbeSettings
from jobs.probe_bug_trainings import alone, together

PACKAGE = "distdoctor.probe"
# What stands between the host and the probe. A bug in one of these few lines cannot be kept away by another of them.
UNTOUCHED = {
    "guarded.call",
    "uncompiled.call",
    "_asked_by_program.made.call",
    "listen.make.call",
    "not_traced.hook",
    "Rank.trouble",
    "ProbeStream._note_trouble",
    "CheckpointStream.outermost",
    "_kernel.kernel",
}


class Planted(ZeroDivisionError):
    """The bug."""


KINDS = ("error", "memory", "slow", "interrupt")
TELLING = frozenset({"error", "memory"})  # after which the recording lacks something
SLOW_SECONDS, SLOW_CALLS = 0.02, 4
SIGNAL = signal.SIGUSR2


@dataclass
class Bug:
    """Raised in `functions` (module:name; None for all) from the `from_call`th call of each on; `calls` counts all calls.

    `kind`: one of `KINDS`. "memory" is a MemoryError, "slow" no error, but a rest in the first calls, "interrupt" a signal that
    strikes once, as soon as the program has a handler for it (`armed`), and whose handler raises.
    """

    functions: frozenset[str] | None
    from_call: int
    kind: str = "error"
    calls: dict[str, int] = field(default_factory=dict)
    armed: bool = False

    def enter(self, function: str) -> None:
        self.calls[function] = count = self.calls.get(function, 0) + 1
        if (self.functions is not None and function not in self.functions) or count < self.from_call:
            return
        if self.kind == "interrupt":
            if self.armed:
                self.armed = False
                signal.raise_signal(SIGNAL)
            return
        if self.kind == "memory":
            raise MemoryError(function)
        if self.kind == "error":
            raise Planted(function)
        if count < self.from_call + SLOW_CALLS:
            time.sleep(SLOW_SECONDS)


class Planting(ast.NodeTransformer):
    """`__bug__("module:Class.function")` at the top of every function."""

    def __init__(self, module: str) -> None:
        self.module, self.names = module, []  # type: tuple[str, list[str]]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._inside(node)
        name = ".".join([*self.names, node.name])
        body = self._kept_away(node)
        stands_in = "make" in self.names or (body is None and _calls_original(node))  # in the place of one of torch's
        if name not in UNTOUCHED and not stands_in:
            call = ast.parse(f"__bug__({f'{self.module}:{name}'!r})").body[0]
            body = body or node.body
            has_docstring = body is node.body and ast.get_docstring(node) is not None
            body.insert(1 if has_docstring else 0, call)
        return node

    def _kept_away(self, node: ast.FunctionDef) -> list[ast.stmt] | None:
        """What a function tries that keeps every error to itself: the bug is planted in there."""
        for one in node.body:
            handlers = one.handlers if isinstance(one, ast.Try) else []
            caught = [handler.type for handler in handlers if not isinstance(handler.body[-1], ast.Raise)]
            if any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in caught):
                assert isinstance(one, ast.Try)
                return one.body
        return None

    def _inside(self, node: Any) -> Any:
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()
        return node


def _calls_original(node: ast.FunctionDef) -> bool:
    """Whether it calls what it has replaced, `original`; what its own functions call does not count."""
    waiting: list[ast.AST] = list(node.body)
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "original":
            return True
        if not isinstance(one, ast.FunctionDef):
            waiting += ast.iter_child_nodes(one)
    return False


class Loader(importlib.machinery.SourceFileLoader):
    bug: Bug
    planted: ClassVar[dict[str, CodeType]] = {}  # by path; a fork server fills it for all that it forks

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.fix_missing_locations(Planting(self.name).visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> CodeType | None:  # past the bytecode that is kept beside the source
        path = self.get_filename(fullname)
        if path not in self.planted:
            self.planted[path] = self.source_to_code(self.get_data(path), path)
        return self.planted[path]

    def exec_module(self, module: ModuleType) -> None:
        vars(builtins)["__bug__"] = self.bug.enter  # there it is found also while the interpreter goes down
        super().exec_module(module)


class Finder:
    """Loads the probe's modules with the bug in them."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(PACKAGE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(name, spec.origin)
        return spec


def train(rank: int, world_size: int, folder: str, from_call: int | None) -> tuple[str, dict[str, int]]:
    """A digest of what this rank computes, and how often each function of the probe was called, all of which break from that call
    on; None: without a probe."""
    bug = Bug(None, from_call or 1)
    for name in [name for name in sys.modules if name.startswith(PACKAGE)]:  # the fork server's
        del sys.modules[name]
    if from_call is not None:
        Loader.bug = bug
        sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
        try:
            settings = ProbeSettings(deep=frozenset({"gradients", "memory"}) if world_size > 1 else frozenset())
            importlib.import_module(f"{PACKAGE}.start").start(folder, settings)
        except Planted:
            pass  # whoever imports us at the start of a rank catches everything: see probe/seam.py
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{from_call}", rank=rank, world_size=world_size)
    digest = alone(rank, 1, folder) if world_size == 1 else together(rank, world_size, folder)
    dist.destroy_process_group()
    return digest, dict(bug.calls)


def told(folder: str) -> tuple[bool, frozenset[str]]:
    """Whether the recording says that something of ours went wrong, or nothing at all; and the functions whose bugs it names."""
    from distdoctor.recording.open import open_run
    from distdoctor.recording.trace.events import ProbeTrouble

    try:
        recording = open_run(Path(folder))
    except Exception:
        return True, frozenset()
    noted = [event.reason for log in recording.ranks.values() for event in log.noted(ProbeTrouble)]
    named = frozenset(reason.rpartition(": ")[2] for reason in noted)
    return bool(noted or recording.troubles or not recording.ranks), named
