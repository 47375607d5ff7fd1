"""Where one machine is outgrown, Ray, Dask or MPI reads the dumps: `examine --engine ray|dask|mpi`.

Each is found as its own programs find it: RAY_ADDRESS, DASK_SCHEDULER_ADDRESS, `mpiexec -n N python -m mpi4py.futures -m
distdoctor examine ...`. Where no address is named, Ray and Dask are started on this machine, and ended again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from distdoctor.errors import CouldNotLook, DoctorError, WrongUse


@contextlib.contextmanager
def engine(name: str) -> Iterator[Executor]:
    """The executor of that engine.

    WrongUse: it is not installed. CouldNotLook: it does not start.
    """
    with contextlib.ExitStack() as stack:
        try:
            executor = stack.enter_context(ENGINES[name]())
        except ImportError as missing:
            raise WrongUse(
                f"--engine {name} needs {missing.name or name}", way_out=f"pip install 'distdoctor[{name}]'"
            ) from missing
        except DoctorError:
            raise
        except Exception as trouble:
            words = (str(trouble).splitlines() or [""])[0][:200]
            raise CouldNotLook(
                f"{name} does not start: {type(trouble).__name__}: {words}",
                way_out="Without --engine the processes of this machine read the dumps.",
            ) from trouble
        yield executor


@contextlib.contextmanager
def _ray() -> Iterator[Executor]:
    import ray

    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield RayExecutor()
    finally:
        if ours:
            ray.shutdown()


@contextlib.contextmanager
def _dask() -> Iterator[Executor]:
    import distributed

    connect: Any = distributed.Client
    with connect(set_as_default=False) as client, client.get_executor(pure=False) as executor:
        yield executor


@contextlib.contextmanager
def _mpi() -> Iterator[Executor]:
    from mpi4py import MPI
    from mpi4py.futures import MPIPoolExecutor

    if (
        MPI.COMM_WORLD.Get_size() < 2
    ):  # it would start processes of its own, which few clusters allow, and wait for them
        raise WrongUse(
            "--engine mpi was started without other processes",
            way_out="mpiexec -n 8 python -m mpi4py.futures -m distdoctor examine --engine mpi PATH",
        )
    with MPIPoolExecutor() as executor:
        yield executor


ENGINES: dict[str, Callable[[], contextlib.AbstractContextManager[Executor]]] = {
    "ray": _ray,
    "dask": _dask,
    "mpi": _mpi,
}


class RayExecutor(Executor):
    """Ray's tasks as an executor."""

    def __init__(self) -> None:
        import ray

        self._task = ray.remote(_called)

    def submit(self, function: Callable[..., Any], /, *args: Any, **values: Any) -> Future[Any]:
        future: Future[Any] = self._task.remote(function, args, values).future()
        return future


def _called(function: Callable[..., Any], args: tuple[Any, ...], values: dict[str, Any]) -> Any:
    return function(*args, **values)
