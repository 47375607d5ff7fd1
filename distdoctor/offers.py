"""What a plugin can offer, described without torch: strategies, workloads' models and data, drills.

Checks and remedies are described in `distdoctor.diagnosis`; everything that runs inside a rank is here, as plain values, so
that a launcher can list it, parse its options and hand it to the ranks by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Option:
    """One command line option that a strategy understands beyond those that all strategies share.

    `name` is the long flag without dashes (`micro-batches`); the value reaches the strategy under the same name with
    underscores. `type` is str, int, float or bool (a bool is a flag); `choices` restricts a str.
    """

    name: str
    help: str
    type: type = str
    default: Any = None
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name under which the strategy finds the value."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Strategy:
    """One way of training, by name.

    `train` is `package.module:function`; it is imported inside the ranks only and called with the one
    `distdoctor.workloads.training.Training` that holds everything else (model, data, options, rank, device).
    `world_sizes` says in words where it makes sense when that is not "any".
    """

    name: str
    summary: str
    train: str
    options: tuple[Option, ...] = ()
    world_sizes: str = "any"


@dataclass(frozen=True)
class Model:
    """A reference model, by the name of `--model`. `make` is `package.module:function` -> `torch.nn.Module`, given
    the data's `Shapes`. `data` names the data set that it is used with unless `--data` says otherwise."""

    name: str
    summary: str
    make: str
    data: str = "digits"


@dataclass(frozen=True)
class DataSource:
    """A reference data set, by the name of `--data`. `make` is `package.module:function`, called with the text after the
    colon of `name:PATH` (or None) and returning `(training set, test set)`, both map-style."""

    name: str
    summary: str
    make: str
    needs_path: bool = False


@dataclass(frozen=True)
class Drill:
    """A planted illness: what to do to a reference workload so that one check has something to find.

    `plant` is `package.module:function`, imported inside the ranks only and called with the `Training` before it starts;
    it registers callbacks there. `expect` is the verdict in words, `code` what must be reported, `ranks` who must be named
    (empty: not said). `strategies` restricts where it can be planted (empty: everywhere), `needs_ranks` is the smallest world,
    `arguments` are settings of the workload that the illness needs to show (`{"epochs": 2}`), `deep` the stream that has to be
    looked at in depth for it (`"memory"`, as `check-memory` does; empty: none).
    """

    slug: str
    code: str
    summary: str
    expect: str
    plant: str
    ranks: tuple[int, ...] = ()
    strategies: tuple[str, ...] = ()
    needs_ranks: int = 2
    arguments: Mapping[str, Any] = field(default_factory=dict)
    deep: str = ""
