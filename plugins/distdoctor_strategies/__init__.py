"""One way of training per file, and the reference models and data. The package offers what its modules hold, so that nothing is
listed twice. Its modules import torch inside their functions only, so that listing them takes milliseconds."""

from __future__ import annotations

from collections.abc import Iterable

from distdoctor.hooks import found_in
from distdoctor.offers import DataSource, Model, Strategy


def distdoctor_strategies() -> Iterable[Strategy]:
    return found_in(__name__, Strategy)


def distdoctor_models() -> Iterable[Model]:
    return found_in(__name__, Model)


def distdoctor_data() -> Iterable[DataSource]:
    return found_in(__name__, DataSource)
