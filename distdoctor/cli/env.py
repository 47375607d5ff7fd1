"""`distdoctor env`: versions and devices, as needed in a bug report."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata

import click


@click.command()
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def env(output_format: str) -> None:
    """Print versions, devices, backends and the limits of this machine. Imports torch."""
    facts = _facts()
    if output_format == "json":
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {', '.join(map(str, value)) if isinstance(value, list) else value}")


def _facts() -> dict[str, object]:
    import torch
    import torch.distributed as dist

    from distdoctor.launch.preflight.machine import shared_memory

    backends = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available, "mpi": dist.is_mpi_available}
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    shm_bytes, _ = shared_memory()
    nccl = _nccl() if torch.version.cuda and gpus else None
    return {
        "distdoctor": metadata.version("distdoctor"),
        "torch": torch.__version__,
        "torchvision": _version("torchvision"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "devices": gpus or "none",
        "backends": [name for name, available in backends.items() if available()],
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "shm_gib": None if shm_bytes is None else round(shm_bytes / 2**30, 2),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "accelerate": _version("accelerate"),
        "lightning": _version("lightning"),
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _nccl() -> str:
    import torch

    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))
