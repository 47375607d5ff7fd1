"""torch's flight recorder of this rank, answered from a C++ thread over a socket in the run folder: also while the GIL is held.

The socket is a file that only its owner may open, in a folder that only its owner may enter. No port is opened, and no
collective, group or device is touched. Without torch's worker server (before 2.4) or room for it the rank goes on without.
"""

from __future__ import annotations

import os
from typing import Any

from distdoctor.probe.context import Rank
from distdoctor.probe.interruptions import hand_on
from distdoctor.probe.stream import ProbeStream
from distdoctor.probe.writer import TraceWriter, file_stem

# httplib starts max(8, CPUs - 1) threads (torch 2.15); where a container is as good as full, those are for the host.
_SPARE_THREADS = 256
_WARNINGS_OFF = 3  # c10's levels: INFO 0, WARNING 1, ERROR 2, FATAL 3


class FlightStream(ProbeStream):
    """The door to this rank's flight recorder. Trouble with it ends nothing else."""

    name = "flight"

    def serve(self) -> bool:
        """Whether it can be asked from outside from now on. Takes 2.4 ms."""
        try:
            from torch._C._distributed_c10d import _WorkerServer

            folder = os.open(self.rank.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (ImportError, OSError) as error:  # an older torch; a folder that is gone
            hand_on(error)
            return False
        try:
            # A socket's path has room for 107 bytes, a run folder's may be longer.
            path = f"/proc/self/fd/{folder}/{file_stem(self.trace.rank, self.trace.attempt)}.sock"
            if os.path.lexists(path) or not _room_for_threads():
                return False
            _start_quietly(_WorkerServer, path, _shelf_for_ever())
            os.chmod(path, 0o600)
        except (OSError, ValueError) as error:  # no /proc; a torch that was built with another log
            hand_on(error)
            return False
        finally:
            os.close(folder)
        return True


def serve(rank: Rank, trace: TraceWriter) -> bool:
    """Whether this rank's flight recorder can be asked from outside from now on. Never raises."""
    stream = FlightStream(rank, trace, deep=False)
    return bool(stream.guarded(stream.serve)())


def _shelf_for_ever() -> list[Any]:
    """A list that is never emptied, not even when the interpreter goes down.

    The destructor of a server waits for its threads, and of one that has only just been started it waits for ever. So whatever
    can fail is done before there is one. The functions of `ctypes.pythonapi` are everybody's: another may have set their types.
    """
    import ctypes

    shelf: list[Any] = []
    keep = ctypes.PyDLL(None).Py_IncRef
    keep.argtypes, keep.restype = (ctypes.py_object,), None
    keep(shelf)
    return shelf


def _start_quietly(server: Any, path: str, shelf: list[Any]) -> None:
    """Put a server on the shelf, without its two lines on standard error: c10's log level is a variable of its library."""
    import ctypes

    import torch

    library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
    level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")  # torch without glog; another build has no such name
    before = level.value
    level.value = max(before, _WARNINGS_OFF)
    try:
        shelf.append(server(path, -1))
    finally:
        level.value = before


def _room_for_threads() -> bool:
    """Whether the limits on processes leave room: a server that gets no thread ends the process (torch 2.15)."""
    import resource

    spare = _SPARE_THREADS + (os.cpu_count() or 1)
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY and soft < 4 * spare:
        return False
    for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/pids"):
        try:
            with open(f"{folder}/pids.max") as limit, open(f"{folder}/pids.current") as now:
                words = limit.read().strip()
                if words != "max" and int(words) - int(now.read()) < spare:
                    return False
        except (OSError, ValueError) as error:
            hand_on(error)
            continue
    return True
