"""`python -m distdoctor.notify WAY WHERE FOLDER OUTCOME`: the process that talks to one library."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import msgspec

from distdoctor.notify.alert import Alert, Delivery
from distdoctor.notify.send import Delivered
from distdoctor.notify.ways import WAYS
from distdoctor.recording.files import write_whole


def main(name: str, where: str, folder: Path, answer: Path) -> None:
    """Send what lies in `folder`, and leave in `answer` what came of it."""
    try:
        alert = msgspec.json.decode((folder / "alert.json").read_bytes(), type=Alert)
        outcome = Delivered(sent=importlib.import_module(WAYS[name].module).send(Delivery(alert, folder, where)))
    except Exception as trouble:
        outcome = Delivered(trouble=_in_one_line(trouble))
    write_whole(answer, msgspec.json.encode(outcome).decode())


def _in_one_line(trouble: Exception) -> str:
    first = next((line.strip() for line in str(trouble).splitlines() if line.strip()), "")
    return f"{type(trouble).__name__}: {first}"[:300] if first else type(trouble).__name__


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
