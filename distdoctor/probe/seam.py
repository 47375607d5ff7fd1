"""The door through which the probe enters a rank: torch calls `autoload` at the end of `import torch`.

torch (2.5 and later) calls every entry point of the group `torch.backends`, in every process that imports torch. So this
module imports nothing but `os` until it knows that a recording is wanted, and never raises: an exception here would make
`import torch` fail in the host. Where autoload is switched off (TORCH_DEVICE_BACKEND_AUTOLOAD=0) `seam_path/sitecustomize.py`
does the same.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Start the probe when `DISTDOCTOR_RUN` names a run folder; otherwise return at once."""
    if not os.environ.get("DISTDOCTOR_RUN") or os.environ.get("DISTDOCTOR") == "0":
        return
    try:
        from distdoctor.probe.start import start

        start()
    except Exception as trouble:
        _note(os.environ["DISTDOCTOR_RUN"], trouble)


def _note(folder: str, trouble: BaseException) -> None:
    """Leave word in the run folder that this process is not recorded, and why."""
    try:
        path = os.path.join(folder, f"no-probe-{os.getpid()}.txt")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{type(trouble).__name__}: {trouble}")
    except Exception:
        return
