"""
DD804 removed-or-deprecated-api: an API that torch has removed or deprecated, or never had.

What it means    torch.cuda.amp and FSDP1 have successors; torch.distributed.pipeline.sync is gone; torch.distributed.DataParallel
                 never existed.
Why it hurts     Removed and invented names end the job with ImportError or AttributeError; deprecated ones will one day.
How we know      The names that are imported and used, through the aliases of the file.
What to do       Use the successor; most of them take the same arguments.
When it is fine  Pinned versions of torch; a branch for old versions.
Source           The deprecation notes of torch 2.15; the FSDP1 to FSDP2 guide.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from distdoctor.diagnosis.finding import ERROR, NOTE
from distdoctor.diagnosis.source.edits import Edit
from distdoctor.diagnosis.source.source_file import FunctionNode, Scope, SourceFile, dotted
from distdoctor.lint.program import ParsedFiles
from distdoctor.lint.rule import Sighting, replace_node, rule
from distdoctor.lint.torch_names import looks_invented, nearest

_DEPRECATED = {
    "torch.cuda.amp.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.cuda.amp.autocast": 'torch.amp.autocast("cuda")',
    "torch.cuda.amp.custom_fwd": 'torch.amp.custom_fwd(device_type="cuda")',
    "torch.cuda.amp.custom_bwd": 'torch.amp.custom_bwd(device_type="cuda")',
    "torch.cpu.amp.GradScaler": 'torch.amp.GradScaler("cpu")',
    "torch.cpu.amp.autocast": 'torch.amp.autocast("cpu")',
    "torch.nn.utils.clip_grad_norm": "torch.nn.utils.clip_grad_norm_",
    "torch.distributed._all_gather_base": "torch.distributed.all_gather_into_tensor",
    "torch.distributed._reduce_scatter_base": "torch.distributed.reduce_scatter_tensor",
    "torch.distributed.checkpoint.save_state_dict": "torch.distributed.checkpoint.save",
    "torch.distributed.checkpoint.load_state_dict": "torch.distributed.checkpoint.load",
    "torch.distributed.fsdp.FullyShardedDataParallel": "torch.distributed.fsdp.fully_shard",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "torch.distributed.fsdp.fully_shard",
    "torch.distributed.launch": "torchrun, and LOCAL_RANK from the environment",
}
_REMOVED = {
    "torch.distributed.pipeline.sync": "torch.distributed.pipelining",
    "torch.distributed.all_gather_multigpu": "torch.distributed.all_gather, one process per GPU",
    "torch.distributed.all_reduce_multigpu": "torch.distributed.all_reduce, one process per GPU",
    "torch.distributed.broadcast_multigpu": "torch.distributed.broadcast, one process per GPU",
    "torch.distributed.reduce_multigpu": "torch.distributed.reduce, one process per GPU",
    "torch.distributed.reduce_scatter_multigpu": "torch.distributed.reduce_scatter, one process per GPU",
    "torch.distributed.deprecated": "torch.distributed",
}
_NEVER = {
    "torch.distributed.DataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.FullyShardedDataParallel": "torch.distributed.fsdp.FullyShardedDataParallel",
    "torch.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.utils.data.distributed.DataLoader": "torch.utils.data.DataLoader",
    "torch.distributed.init_group": "torch.distributed.init_process_group",
    "torch.distributed.allreduce": "torch.distributed.all_reduce",
    "torch.distributed.allgather": "torch.distributed.all_gather",
}
# `version.parse(...)`, and the names that answers are kept under: `_TORCH_GREATER_EQUAL_2_4`, `IS_TORCH_2`.
_ASKS_VERSION = re.compile(r"version|hasattr|is_available|type_checking|torch\w{0,30}_\d", re.IGNORECASE)


@rule("DD804", "removed-or-deprecated-api", severity=NOTE)
def see(program: ParsedFiles) -> Iterator[Sighting]:
    added = _added(program)
    for file in program.files:
        if "torch" not in file.text:
            continue
        uses: dict[str, list[ast.AST]] = {}
        for name, node in _uses(file, program):
            uses.setdefault(name, []).append(node)
        for name, nodes in uses.items():
            both = "FullyShardedDataParallel" in name and ("fully_shard(" in file.text or "fsdp2" in file.text.lower())
            if not both and not _guarded(nodes[0], file):
                yield _sighting(name, nodes, file)
        if "distributed" in file.text and not any(word in file.text for word in _EXTENDED):
            yield from _invented(file, added, program)


def _added(program: ParsedFiles) -> set[str]:
    """What the files themselves set: `dist.all_reduce_mean = ...`."""
    assigns = ((one, file) for file in program.files for scope in file.scopes for one in scope.assigns)
    return {
        program.meaning(target, file)
        for one, file in assigns
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Attribute)
    }


def _invented(file: SourceFile, added: set[str], program: ParsedFiles) -> Iterator[Sighting]:
    """`dist.all_reduce_sum(x)`: a call of what torch.distributed never had."""
    for scope in file.scopes:
        for call in scope.calls:
            name = program.meaning(call.func, file)
            start, _, word = name.rpartition(".")
            if name in added or start != "torch.distributed" or not looks_invented(word) or _guarded(call, file):
                continue
            if program.bindings(dotted(call.func).partition(".")[0], scope):
                continue  # somebody else's, under this name
            yield Sighting(
                node=call,
                scope=scope,
                title=f"torch.distributed has no {word}; use torch.distributed.{nearest(word)}",
                why="no torch from 1.4 to 2.14 has a function of this name: AttributeError when this line runs",
                change=f"{word} -> {nearest(word)}",
                severity=ERROR,
                evidence={"api": f"torch.distributed.{word}", "uses": 1},
            )


_EXTENDED = ("npu", "habana", "xla")  # backends that add functions to torch.distributed


def _uses(file: SourceFile, program: ParsedFiles) -> Iterator[tuple[str, ast.AST]]:
    """(name, node) of what is imported, and of dotted names that are written out."""
    for node in file.import_nodes:
        start = node.module or "" if isinstance(node, ast.ImportFrom) and not node.level else ""
        for alias in node.names:
            full = f"{start}.{alias.name}" if start else alias.name
            if isinstance(node, ast.Import) or start:
                found = _known(full) or _known(start)
                if found and not _only_asked_for(alias.asname or alias.name, file):
                    yield found, node
    for attribute in file.attributes:
        name = program.meaning(attribute, file)
        if name.startswith("torch.") and (name in _DEPRECATED or name in _REMOVED or name in _NEVER):
            yield name, attribute


def _only_asked_for(name: str, file: SourceFile) -> bool:
    """Whether a file uses a name in nothing but `isinstance(x, name)` and annotations: whoever may be given one has to."""
    uses = [node for node in file.names if node.id == name]
    return bool(uses) and all(_asks(node, file) for node in uses)


def _asks(node: ast.AST, file: SourceFile) -> bool:
    while (outer := file.parent.get(node)) is not None and not isinstance(outer, ast.stmt):
        if isinstance(outer, ast.Call):
            return dotted(outer.func) in ("isinstance", "issubclass") and node is not outer.func
        if isinstance(outer, ast.arg):
            return True
        node = outer
    return (isinstance(outer, ast.AnnAssign) and node is outer.annotation) or (
        isinstance(outer, FunctionNode) and node is outer.returns
    )


def _known(name: str) -> str:
    if name in _DEPRECATED or name in _NEVER:
        return name
    return next((one for one in _REMOVED if name == one or name.startswith(one + ".")), "")


def _guarded(node: ast.AST, file: SourceFile) -> bool:
    """In a `try`, or behind a question for the version or the attribute: somebody cares for both."""
    current: ast.AST | None = node
    while (current := file.parent.get(current) if current is not None else None) is not None:
        if isinstance(current, ast.Try | ast.ExceptHandler):
            return True
        if isinstance(current, ast.If | ast.IfExp) and _ASKS_VERSION.search(ast.unparse(current.test)):
            return True
    return False


def _sighting(name: str, nodes: list[ast.AST], file: SourceFile) -> Sighting:
    table, word = next((t, w) for t, w in _TABLES if name in t)
    scope = file.scope_of.get(nodes[0], file.module)
    count = f" ({len(nodes)} uses in this file)" if len(nodes) > 1 else ""
    edits = tuple(one for node in nodes for one in _edits(name, node, file)) if word == "is deprecated" else ()
    return Sighting(
        node=nodes[0],
        scope=scope,
        title=f"{name} {word}; use {table[name]}",
        why=f"first use{count}" if count else "",
        remedy="use-the-successor",
        change=f"{name} -> {table[name]}",
        severity=NOTE if word == "is deprecated" else ERROR,
        edits=edits,
        evidence={"api": name, "uses": len(nodes)},
    )


_TABLES = ((_DEPRECATED, "is deprecated"), (_REMOVED, "was removed"), (_NEVER, "never existed"))


def _edits(name: str, node: ast.AST, file: SourceFile) -> Iterator[Edit]:
    """The safe ones: `torch.cuda.amp.autocast(...)` written out, with no argument by place."""
    call = file.parent.get(node)
    if not isinstance(node, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not node:
        return
    device, _, word = name.removeprefix("torch.").partition(".amp.")
    if device not in ("cuda", "cpu") or word not in ("autocast", "GradScaler") or dotted(node) != name or call.args:
        return
    scope: Scope = file.scope_of[node]
    rest = ", ".join(ast.unparse(one) for one in call.keywords)
    yield replace_node(call, scope, f'torch.amp.{word}("{device}"{", " + rest if rest else ""})')


SICK = """
import torch
scaler = torch.cuda.amp.GradScaler()
"""
HEALTHY = """
import torch
scaler = torch.amp.GradScaler("cuda")
"""
