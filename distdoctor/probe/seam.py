"""The entry point through which the probe gets into a rank: torch calls `autoload` at the end of `import torch`.

torch (2.5 and later) calls every entry point of the group `torch.backends`, in every process that imports torch. So this
module imports nothing but `os` until it knows that a recording is wanted, and never raises: an exception here would make
`import torch` fail in the host. Where autoload is switched off (TORCH_DEVICE_BACKEND_AUTOLOAD=0) `seam_path/sitecustomize.py`
does the same.
"""

from __future__ import annotations

import os

VARIABLE = "DISTDOCTOR_PROBE"  # as in distdoctor.recording.trace.probe_settings


def autoload() -> None:
    """Start the probe when DISTDOCTOR_PROBE names its settings; otherwise return at once."""
    if not os.environ.get(VARIABLE) or os.environ.get("DISTDOCTOR") == "0":
        return
    path = os.environ[VARIABLE]
    try:
        from distdoctor.probe.start import start_as_told

        start_as_told(path)
    except Exception as trouble:
        _note(os.path.dirname(path), trouble)


def _note(folder: str, trouble: BaseException) -> None:
    """Leave word in the run folder that this process is not recorded, and why."""
    try:
        path = os.path.join(folder, f"no-probe-{os.getpid()}.txt")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{type(trouble).__name__}: {trouble}")
    except Exception:
        return
