"""Variables that processes started from here inherit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables hold inside, in this process and in what it starts; afterwards the values from before do again."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def entry_where_autoload_is_off() -> dict[str, str]:
    """The probe's other entry point: torch does not open the first one under TORCH_DEVICE_BACKEND_AUTOLOAD=0."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        return {}
    door = Path(__file__).parent.parent / "probe" / "seam_path"
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(door), os.environ.get("PYTHONPATH"))))}
