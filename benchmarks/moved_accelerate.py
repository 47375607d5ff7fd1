"""accelerate's tests of its own distributed functions, with the mark instead of a launch. `moved_suites.py` runs it.

Its scripts call these functions one after the other from a `main()` that torchrun starts; here each is a test of its own. Two
edits: what main() passes to them comes from a fixture, and the state that accelerate keeps in the process is taken down.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch.multiprocessing as mp
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.test_utils.scripts import test_distributed_data_loop, test_ops, test_script, test_sync
from accelerate.utils import DistributedType

OWN = os.environ.get("HARNESS") == "own"
WITHOUT = {  # need an argument that main() makes of many lines, a package or a device that is not there
    "test_data_loader",
    "test_split_between_processes_dataset",
    "test_noop_sync",
    "test_copy_tensor_to_devices",
    "test_join_raises_warning_for_non_ddp_distributed",
}


def functions_of(module: ModuleType) -> list[Callable[..., object]]:
    named = {name: f for name, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
    checks = {name: f for name, f in named.items() if name.startswith("test_") or name.endswith("_check")}
    checks |= {name: f for name, f in named.items() if name.startswith("check_seed")}
    return [f for name, f in checks.items() if name not in WITHOUT]


FUNCTIONS = [
    f for module in (test_ops, test_sync, test_distributed_data_loop, test_script) for f in functions_of(module)
]


def arguments(function: Callable[..., object]) -> dict[str, object]:
    names = inspect.signature(function).parameters
    given: dict[str, object] = {}
    if "accelerator" in names:
        given["accelerator"] = Accelerator(cpu=True)
    if "state" in names:
        given["state"] = PartialState(cpu=True)
    if not given:
        Accelerator(cpu=True)
    return given


@pytest.fixture
def clean(dist: ModuleType) -> Iterator[None]:
    os.environ["ACCELERATE_USE_CPU"] = "1"
    yield
    AcceleratorState._reset_state(True)


def named(function: Callable[..., object]) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


@pytest.mark.skipif(OWN, reason="HARNESS=own")
@pytest.mark.distdoctor(nproc=2, timeout=100)
@pytest.mark.parametrize("function", FUNCTIONS, ids=named)
def test_moved(function: Callable[..., object], clean: None) -> None:
    function(**arguments(function))
    assert PartialState().distributed_type == DistributedType.MULTI_CPU


def spawned(rank: int, module: str, name: str, port: int) -> None:
    import importlib

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_PORT=str(port))
    os.environ.update(MASTER_ADDR="127.0.0.1", ACCELERATE_USE_CPU="1")
    function = getattr(importlib.import_module(module), name)
    function(**arguments(function))
    PartialState().destroy_process_group()


@pytest.mark.skipif(not OWN, reason="HARNESS is not own")
@pytest.mark.parametrize("function", FUNCTIONS, ids=named)
def test_spawned(function: Callable[..., object], unused_port: int) -> None:
    mp.spawn(spawned, (function.__module__, function.__name__, unused_port), nprocs=2)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
