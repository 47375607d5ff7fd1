"""The wrappers around what saves and loads: torch.save and load, distributed checkpoints, load_state_dict, os.replace."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from distdoctor.probe import wrappers
from distdoctor.probe.checkpoints.stream import CheckpointStream
from distdoctor.probe.compile_guard import skipped
from distdoctor.probe.context import Rank

Make = Callable[[Callable[..., Any]], Callable[..., Any]]


def install(rank: Rank) -> None:
    """Note saves and loads from now on."""
    if rank.trace is None:
        return
    stream = CheckpointStream(rank, rank.trace)
    lay(stream)
    stream.snapshots.install()
    stream.other_files.install()
    wrappers.listen(threading.Thread, "start", before=stream.guarded(stream.thread_begins))
    rank.at_end.append(stream.guarded(stream.exiting))


def lay(stream: CheckpointStream) -> None:
    """Everything that is loaded already; distributed checkpoints when they are first imported (see `lay_distributed`)."""
    serialization = sys.modules["torch.serialization"]
    wrappers.lay_everywhere((serialization, torch), "save", _around_save(stream))
    wrappers.lay_everywhere((serialization, torch), "load", _around_load(stream))
    for name in ("replace", "rename"):
        wrappers.lay(os, name, _around_rename(stream))
    wrappers.lay(torch.nn.Module, "load_state_dict", _around_module(stream))
    wrappers.lay(torch.optim.Optimizer, "load_state_dict", _around_state(stream, "optimizer"))
    wrappers.lay(torch.amp.GradScaler, "load_state_dict", _around_state(stream, "scaler"))
    for scheduler in vars(torch.optim.lr_scheduler).values():
        own = isinstance(scheduler, type) and scheduler is not torch.optim.Optimizer  # which that module imports
        if own and "load_state_dict" in vars(scheduler):
            wrappers.lay(scheduler, "load_state_dict", _around_state(stream, "scheduler"))
    lay_distributed = _once(stream)
    lay_distributed()
    stream.rank.on_group.append(lay_distributed)
    wrappers.listen(torch.optim.Optimizer, "__init__", before=lambda _: lay_distributed())


def _once(stream: CheckpointStream) -> Callable[[], None]:
    """Wrap torch's distributed checkpoints, and safetensors, as soon as somebody has imported them; we do not."""
    plain = ["safetensors.torch"]
    missing = ["state_dict_saver", "state_dict_loader", "_async_thread_executor", "_async_process_executor"]

    @stream.guarded
    def lay_distributed() -> None:
        if plain and "safetensors.torch" in sys.modules:
            # What `save_file` calls by this name at the time, whoever has imported it from where before.
            wrappers.lay(sys.modules[plain.pop()], "serialize_file", _around_serialize(stream))
        for name in list(missing):
            module = sys.modules.get(f"torch.distributed.checkpoint.{name}")
            if module is None:
                continue
            missing.remove(name)
            wrappers.lay(module, "_save_state_dict", _around_distributed_save(stream))
            wrappers.lay(module, "_load_state_dict", _around_distributed_load(stream))
            for kind in ("_ThreadBasedAsyncCheckpointExecutor", "_ProcessBasedAsyncCheckpointExecutor"):
                if hasattr(module, kind) and getattr(module, kind).__module__ == module.__name__:
                    wrappers.lay(getattr(module, kind), "execute_save", _around_async_save(stream))

    return lay_distributed


def _around_save(stream: CheckpointStream) -> Make:
    begins, ended = stream.guarded(stream.save_begins), stream.guarded(stream.save_ended)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            state = args[0] if args else kwargs.get("obj")
            file = args[1] if len(args) > 1 else kwargs.get("f")
            seq, failed = begins(state, file, "torch.save"), True
            try:
                result = original(*args, **kwargs)
                failed = False
                return result
            finally:
                ended(seq, failed)

        return skipped(save)

    return make


def _around_serialize(stream: CheckpointStream) -> Make:
    begins, ended = stream.guarded(stream.file_begins), stream.guarded(stream.save_ended)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            seq, failed = begins(tensors, filename), True
            try:
                result = original(tensors, filename, *args, **kwargs)
                failed = False
                return result
            finally:
                ended(seq, failed)

        return skipped(serialize_file)

    return make


def _around_load(stream: CheckpointStream) -> Make:
    begins, ended = stream.guarded(stream.load_begins), stream.guarded(stream.load_ended)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(*args: Any, **kwargs: Any) -> Any:
            file = args[0] if args else kwargs.get("f")
            location = args[1] if len(args) > 1 else kwargs.get("map_location")
            seq, result, failed = begins(file, "torch.load", location is not None), None, True
            try:
                result = original(*args, **kwargs)
                failed = False
                return result
            finally:
                ended(seq, result, failed)

        return skipped(load)

    return make


def _around_rename(stream: CheckpointStream) -> Make:
    renames, renamed = stream.guarded(stream.renames), stream.guarded(stream.renamed)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def rename(*args: Any, **kwargs: Any) -> Any:
            if len(args) != 2:
                return original(*args, **kwargs)
            frame = sys._getframe(1)
            content = renames(*args, frame)
            result = original(*args, **kwargs)
            renamed(*args, frame, content or 0)
            return result

        return rename

    return make


def _around_module(stream: CheckpointStream) -> Make:
    loaded, tied, untied = (
        stream.guarded(stream.state_loaded),
        stream.guarded(stream.tied),
        stream.guarded(stream.untied),
    )

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            ties = tied(self) if kwargs.get("assign") or args[1:] else None
            found = stream.outermost(lambda: original(self, state_dict, *args, **kwargs))
            loaded("module", self, state_dict, found, bool(args[0] if args else kwargs.get("strict", True)))
            if ties:
                untied(self, ties)
            return found

        return skipped(load_state_dict)

    return make


def _around_state(stream: CheckpointStream, what: str) -> Make:
    loaded = stream.guarded(stream.state_loaded)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            result = stream.outermost(lambda: original(self, state_dict, *args, **kwargs))
            loaded(what, self, state_dict, None, True)
            return result

        return skipped(load_state_dict)

    return make


def _around_distributed_save(stream: CheckpointStream) -> Make:
    begins, ended = stream.guarded(stream.distributed_save_begins), stream.guarded(stream.save_ended)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def save_state_dict(*args: Any, **kwargs: Any) -> Any:
            storage = args[1] if len(args) > 1 else kwargs.get("storage_writer")
            seq, failed = begins(args[0] if args else kwargs.get("state_dict"), storage), True
            try:
                result = stream.outermost(lambda: original(*args, **kwargs))
                failed = False
                return result
            finally:
                ended(seq, failed)

        return save_state_dict

    return make


def _around_async_save(stream: CheckpointStream) -> Make:
    begins, ended = stream.guarded(stream.async_save_begins), stream.guarded(stream.async_save_ended)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def execute_save(self: Any, *args: Any, **kwargs: Any) -> Any:
            noted = begins(kwargs.get("checkpoint_id"), kwargs.get("storage_writer"))
            future = original(self, *args, **kwargs)
            if noted is not None and hasattr(future, "add_done_callback"):
                future.add_done_callback(lambda done: ended(*noted, done))
            return future

        return execute_save

    return make


def _around_distributed_load(stream: CheckpointStream) -> Make:
    begins, ended = stream.guarded(stream.distributed_load_begins), stream.guarded(stream.load_ended)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_state_dict(*args: Any, **kwargs: Any) -> Any:
            storage = args[1] if len(args) > 1 else kwargs.get("storage_reader")
            seq, failed = begins(storage), True
            try:
                result = stream.outermost(lambda: original(*args, **kwargs))
                failed = False
                return result
            finally:
                ended(seq, None, failed)

        return load_state_dict

    return make
