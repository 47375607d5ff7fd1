"""A training under a probe with a bug planted in it, and what became of the training.

Every function of distdoctor.probe gets a line at its top that may raise; where a function keeps errors to itself, the line stands
inside of that. What is left out: the few functions that keep trouble away (`UNTOUCHED`), and those that stand in the place of one
of torch's, whose own lines are few.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PACKAGE = "distdoctor.probe"
# What stands between the host and the probe. A bug in one of these few lines cannot be kept away by another of them.
UNTOUCHED = {
    "guarded.call",
    "uncompiled.call",
    "listen.make.call",
    "not_traced.hook",
    "Rank.trouble",
    "ProbeStream._note_trouble",
}


class Planted(ZeroDivisionError):
    """The bug."""


@dataclass
class Bug:
    """Raised in `function` (module:name; "*" for all, "" for none) from its `from_call`th call on; `calls` counts all calls."""

    function: str
    from_call: int
    calls: dict[str, int] = field(default_factory=dict)

    def enter(self, function: str) -> None:
        self.calls[function] = self.calls.get(function, 0) + 1
        if self.function in (function, "*") and self.calls[function] >= self.from_call:
            raise Planted(function)


class Planting(ast.NodeTransformer):
    """`__bug__("module:Class.function")` at the top of every function."""

    def __init__(self, module: str) -> None:
        self.module, self.names = module, []  # type: tuple[str, list[str]]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._inside(node)
        name = ".".join([*self.names, node.name])
        if name not in UNTOUCHED and "make" not in self.names:  # what `make` makes stands in the host's place
            call = ast.parse(f"__bug__({f'{self.module}:{name}'!r})").body[0]
            body = self._kept_away(node) or node.body
            has_docstring = body is node.body and ast.get_docstring(node) is not None
            body.insert(1 if has_docstring else 0, call)
        return node

    def _kept_away(self, node: ast.FunctionDef) -> list[ast.stmt] | None:
        """What a function tries that keeps every error to itself: the bug is planted in there."""
        for one in node.body:
            caught = [handler.type for handler in one.handlers] if isinstance(one, ast.Try) else []
            if any(isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException") for kind in caught):
                assert isinstance(one, ast.Try)
                return one.body
        return None

    def _inside(self, node: Any) -> Any:
        self.names.append(node.name)
        self.generic_visit(node)
        self.names.pop()
        return node


class Loader(importlib.machinery.SourceFileLoader):
    bug: Bug

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.fix_missing_locations(Planting(self.name).visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> CodeType | None:  # past the bytecode that is kept beside the source
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__bug__"] = self.bug.enter
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


def _train(folder: str) -> str:
    """A little of everything that the probe looks at. A digest of all that it computes."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.manual_seed(0)
    seen = hashlib.sha256()
    data = TensorDataset(torch.randn(48, 16), torch.randn(48, 4))
    sampler = DistributedSampler(data)  # type: ignore[var-annotated]
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    layers = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 4))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    group = dist.new_group([0])
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, (x, y) in enumerate(loader):
            with torch.autocast("cpu", enabled=step % 4 == 0):
                loss = nn.functional.mse_loss(model(x).float(), y)
            if step % 3 == 2:
                with model.no_sync():
                    loss.backward()
                continue
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total, group=group)
            handle = dist.all_reduce(total, async_op=True)
            handle.wait()
            seen.update(str(total.item()).encode())
        schedule.step()
        model.eval()
        with torch.no_grad():
            seen.update(str(model(data.tensors[0]).sum().item()).encode())
        model.train()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/saved.pt")
        state = torch.load(f"{folder}/saved.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    for parameter in model.parameters():
        seen.update(parameter.detach().numpy().tobytes())
    return seen.hexdigest()


def train(rank: int, world_size: int, folder: str, function: str | None, from_call: int) -> tuple[str, dict[str, int]]:
    """A digest of what this rank computes, and how often each function of the probe was called; `function` None: without one."""
    import torch.distributed as dist

    bug = Bug(function or "", from_call)
    if function is not None:
        Loader.bug = bug
        sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
        try:
            importlib.import_module(f"{PACKAGE}.start").start(folder)
        except Planted:
            pass  # whoever imports us at the start of a rank catches everything: see probe/seam.py
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{function}-{from_call}", rank=rank, world_size=world_size
    )
    digest = _train(folder)
    dist.destroy_process_group()
    return digest, dict(bug.calls)


def told(folder: str) -> bool:
    """Whether the recording says that something of ours went wrong, or says nothing at all."""
    from distdoctor.recording.open import open_run
    from distdoctor.recording.trace.events import ProbeTrouble

    try:
        recording = open_run(Path(folder))
    except Exception:
        return True
    noted = [event for log in recording.ranks.values() for event in log.noted(ProbeTrouble)]
    return bool(noted or recording.troubles or not recording.ranks)
