import functools
import json
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


def on_last_rank(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if dist.get_rank() == dist.get_world_size() - 1:
            return fn(*args, **kwargs)
    return wrapper


@dataclass
class EpochReport:
    epoch: int
    loss: float
    seen: int = 0
    activations: list = field(default_factory=list, repr=False)

    @property
    def dead_units(self):
        mine = torch.stack(self.activations).amax(0)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        return int((torch.stack(everyone).amax(0) <= 0).sum())

    def as_row(self, detailed=False):
        row = {"epoch": self.epoch, "loss": round(self.loss, 4), "seen": self.seen}
        if detailed:
            row["dead_units"] = self.dead_units
        return row


class ReportWriter:
    def __init__(self, detail_every):
        self.detail_every = detail_every
        self.rows = []

    @on_last_rank
    def write(self, report):
        detailed = (report.epoch + 1) % self.detail_every == 0
        self.rows.append(report.as_row(detailed))
        print(json.dumps(self.rows[-1]), flush=True)
