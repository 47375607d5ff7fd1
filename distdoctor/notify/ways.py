"""The ways to send an alert, by the name that `--notify` takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from distdoctor.errors import WrongUse


@dataclass(frozen=True)
class Channel:
    """`library`: the module that must be installed; `package`: what pip calls it; `module`: of ours, it has `send(delivery)`."""

    name: str
    library: str
    package: str
    module: str
    where: str
    """What may follow the name after a colon."""
    by_whoever_asks: bool = False
    """Whether that is an address or a folder, so that a file which came with somebody else's source must not choose it."""


WAYS = {
    way.name: way
    for way in (
        Channel("wandb", "wandb", "wandb", "distdoctor.notify.to_wandb", "PROJECT"),
        Channel("mlflow", "mlflow", "mlflow", "distdoctor.notify.to_mlflow", "EXPERIMENT"),
        Channel("trackio", "trackio", "trackio", "distdoctor.notify.to_trackio", "PROJECT"),
        Channel(
            "tensorboard",
            "tensorboard",
            "tensorboard",
            "distdoctor.notify.to_tensorboard",
            "FOLDER",
            by_whoever_asks=True,
        ),
        Channel(
            "otel",
            "opentelemetry.exporter.otlp.proto.http",
            "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
            "distdoctor.notify.to_otel",
            "ADDRESS",
            by_whoever_asks=True,
        ),
    )
}


@dataclass(frozen=True)
class Target:
    """A way, and where to: a project, an experiment, a folder or an address; "" for the library's own default."""

    way: Channel
    where: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot be used here; "" where its library is installed."""
        try:
            installed = importlib.util.find_spec(self.way.library) is not None
        except (ImportError, ValueError):
            installed = False
        return "" if installed else f"{self.way.library} is not installed (pip install {self.way.package})"


def chosen_by_a_file(words: Sequence[str]) -> str:
    """The first of these targets that only whoever asks may choose, "" without one."""
    for word in words:
        name, _, where = word.strip().partition(":")
        way = WAYS.get(name.lower())
        if way is not None and way.by_whoever_asks and where:
            return word
    return ""


def targets_of(words: Sequence[str]) -> list[Target]:
    """The targets that `--notify` names, as NAME or NAME:WHERE.

    WrongUse: there is no such way.
    """
    found = []
    for word in words:
        name, _, where = word.strip().partition(":")
        if name.lower() not in WAYS:
            known = ", ".join(f"{way.name}[:{way.where}]" for way in WAYS.values())
            raise WrongUse(f"--notify {word}: there is no such way to notify", way_out=f"There are {known}.")
        found.append(Target(WAYS[name.lower()], where))
    return list(dict.fromkeys(found))
