"""TensorBoard: the alert as a text, and the report beside the events, in a folder of its own below the given one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from distdoctor.notify.alert import Delivery

USUAL = "runs"  # where SummaryWriter writes, too


def send(delivery: Delivery) -> str:
    """Where it has gone: the folder."""
    alert = delivery.alert
    folder = Path(delivery.where or USUAL) / re.sub(r"[^\w.-]+", "-", f"distdoctor-{alert.name}")
    folder.mkdir(parents=True, exist_ok=True)
    for path in delivery.reports:
        shutil.copyfile(path, folder / path.name)
    with SummaryWriter(str(folder)) as writer:
        report = folder.absolute() / "report.html"
        words = f"**{alert.title}**\n\n```\n{alert.text}\n```\n\nreport: `{report}`"
        writer.add_text("distdoctor", words)
    return str(folder)
