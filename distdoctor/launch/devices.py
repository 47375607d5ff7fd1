"""What this machine offers the ranks, asked before they start: DD601 and DD602 as errors instead of tracebacks."""

from __future__ import annotations

from distdoctor.errors import DoctorError

CPU_BACKENDS = frozenset({"gloo", "mpi"})


class DoesNotFit(DoctorError):
    """The ranks asked for do not fit this machine. `code` is the illness that they would have had."""

    def __init__(self, code: str, message: str, *, way_out: str) -> None:
        super().__init__(f"{code}: {message}", way_out=way_out)
        self.code = code


def visible_gpus() -> int:
    """CUDA devices that ranks started from here will see. Asks the driver; initialises no device."""
    import torch

    return torch.cuda.device_count() if torch.version.cuda or torch.version.hip else 0


def require_backend(backend: str | None) -> None:
    """DoesNotFit (DD602): this torch or this machine cannot do the backend asked for."""
    import torch.distributed as dist

    if backend is None or backend == "gloo":
        return
    if backend == "mpi" and not dist.is_mpi_available():
        raise DoesNotFit(
            "DD602",
            "--backend mpi needs a torch that was built with MPI, and this one was not",
            way_out="Use --backend gloo (CPU) or --backend nccl (GPU); only a torch built from source on an MPI host has mpi.",
        )
    if backend == "nccl" and not visible_gpus():
        raise DoesNotFit(
            "DD602",
            "--backend nccl needs a CUDA device, and none is visible here",
            way_out="Use --backend gloo, or check nvidia-smi and CUDA_VISIBLE_DEVICES.",
        )


def require_devices(ranks: int, backend: str | None) -> None:
    """DoesNotFit (DD601): more ranks on this node than CUDA devices, and the backend needs one for each."""
    gpus = visible_gpus()
    if gpus and backend not in CPU_BACKENDS and ranks > gpus:
        raise DoesNotFit(
            "DD601",
            f"{ranks} ranks on this node, and {gpus} CUDA {'device is' if gpus == 1 else 'devices are'} visible",
            way_out=f"Take --nproc {gpus}, widen CUDA_VISIBLE_DEVICES, or train on the CPU with --backend gloo.",
        )


def notice(ranks: int) -> str:
    """What to tell whose ranks choose their own devices, "" when nothing is odd."""
    gpus = visible_gpus()
    if gpus and ranks > gpus:
        return f"DD601 {ranks} ranks and {gpus} visible CUDA device(s): two ranks on one device will stall or fail with nccl"
    return ""
