"""A training under a probe with a bug planted in it, and what became of the training.

Every function of distdoctor.probe gets a line at its top that may raise; where a function keeps errors to itself, the line stands
inside of that. What is left out: the few functions that keep trouble away (`UNTOUCHED`), and those that stand in the place of one
of torch's, whose own lines are few.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import importlib.machinery
import math
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)

from distdoctor.recording.trace.probe_settings import ProbeSettings

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


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """A stream of samples, some of them nested, that each worker cuts for itself."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for number in range(first, 24, step):
            yield {"x": torch.full((16,), number / 24), "names": [str(number)], "id": number}


class Held(Dataset):  # type: ignore[type-arg]
    """Samples in a list and in an array, as a program of its own holds them."""

    def __init__(self) -> None:
        self.rows = [{"number": number, "name": f"row {number}"} for number in range(40)]
        self.array = torch.arange(40 * 16.0).reshape(40, 16) / 640

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return self.array[number] + torch.rand(16), self.rows[number]["number"] % 4  # type: ignore[operator]


class Branched(nn.Module):
    """A part that is recomputed, one that takes part now and then, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.seldom, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, *, seldom: bool = False) -> torch.Tensor:
        x = checkpoint(lambda one: torch.relu(self.first(one)), self.norm(x), use_reentrant=False)
        return self.head(self.seldom(x) if seldom else x)  # type: ignore[no-any-return]


def _train_together(rank: int, world_size: int) -> str:
    """What only several ranks do, or few trainings: streams, workers, a scaler that skips, gathers, copies of the model."""
    torch.manual_seed(0)
    seen = hashlib.sha256()
    model = Branched()
    average = copy.deepcopy(model)
    together = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(together.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    torch.manual_seed(rank)
    held = Held()
    batches = BatchSampler(DistributedSampler(held), 5, drop_last=False)
    for epoch, loader in enumerate(
        (
            DataLoader(held, batch_sampler=batches, num_workers=1),
            DataLoader(Numbers(), batch_size=4, num_workers=1),
            DataLoader(Numbers(), batch_size=4),
            DataLoader(held, batch_size=4, sampler=RandomSampler(held)),
        )
    ):
        for step, batch in enumerate(loader):
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            out = together(x, seldom=step % 2 == 1)
            parts = [torch.zeros_like(out) for _ in range(world_size)]
            dist.all_gather(parts, out.detach())
            loss = (out - torch.stack(parts).mean(0)).square().mean() + out.square().mean()
            loss = loss * math.inf if (epoch, step) == (0, 3) else loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(together.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            together.zero_grad()
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
            seen.update(str(loss.item()).encode())
        together.eval()
        seen.update(str(together(held.array).sum().item()).encode())  # an evaluation that forgot no_grad
        together.train()
    x = held.array[:4].requires_grad_()
    (slope,) = torch.autograd.grad(model.double()(x.double()).sum(), x)
    seen.update(slope.numpy().tobytes())
    uneven = DistributedDataParallel(nn.Linear(16, 4))
    with Join([uneven]):
        for _ in range(2 + rank):
            uneven(held.array[:4].detach()).sum().backward()
    dist.monitored_barrier()
    again = pickle.loads(pickle.dumps(model))
    for parameter in (*again.parameters(), *average.parameters()):
        seen.update(parameter.detach().numpy().tobytes())
    return seen.hexdigest()


def train(rank: int, world_size: int, folder: str, function: str | None, from_call: int) -> tuple[str, dict[str, int]]:
    """A digest of what this rank computes, and how often each function of the probe was called; `function` None: without one."""
    bug = Bug(function or "", from_call)
    if function is not None:
        Loader.bug = bug
        sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]
        try:
            settings = ProbeSettings(deep=frozenset({"gradients", "memory"}) if world_size > 1 else frozenset())
            importlib.import_module(f"{PACKAGE}.start").start(folder, settings)
        except Planted:
            pass  # whoever imports us at the start of a rank catches everything: see probe/seam.py
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{function}-{from_call}", rank=rank, world_size=world_size
    )
    digest = _train(folder) if world_size == 1 else _train_together(rank, world_size)
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
