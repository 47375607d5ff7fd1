"""Digests of what is written into files: equal for equal contents, and nothing of a stranger's is called."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from distdoctor.probe.checkpoints.content_digests import digest_of_file, digest_of_value


class Jealous(dict[str, Any]):
    """Whoever asks it for anything by its own methods is turned away."""

    def items(self) -> NoReturn:
        raise AssertionError

    def __len__(self) -> NoReturn:
        raise AssertionError

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(name)


VALUES = [
    None,
    True,
    1,
    1.5,
    "text",
    b"bytes",
    [1, 2],
    (1, 2),
    {"a": [1, {"b": 2}]},
    OrderedDict(a=1),
    np.arange(6.0).reshape(2, 3),
    np.float32(2.5),
    torch.arange(5),
    torch.tensor(True),
    Jealous(a=1, b=2),
    {"long": "x" * 10_000},
    np.zeros(1 << 20),
]


@pytest.mark.parametrize("value", VALUES, ids=[str(number) for number in range(len(VALUES))])
def test_a_value_has_a_digest_that_others_do_not_have(value: Any) -> None:
    assert 0 < digest_of_value(value) < 1 << 63
    assert digest_of_value(value) == digest_of_value(value)
    same = [number for number, other in enumerate(VALUES) if digest_of_value(other) == digest_of_value(value)]
    assert len(same) == 1


def test_of_what_is_not_known_there_is_none() -> None:
    assert digest_of_value(object()) == 0
    assert digest_of_value(torch.zeros(3, 2).t()) == 0


def test_a_file_has_the_digest_of_what_it_holds(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).write_text(text)
    one, same, other = (digest_of_file(str(tmp_path / name)) for name in "abc")

    assert one == same != other
    with pytest.raises(OSError, match="directory"):
        digest_of_file(str(tmp_path))
