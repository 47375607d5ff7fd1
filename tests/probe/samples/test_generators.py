"""Which generators a data set holds, and whether a batch was drawn from them."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from distdoctor.probe.samples.generators import defaults, drawn_from, held_by, read


class Holder:
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


def test_generators_are_found_in_the_transforms_of_a_subset() -> None:
    ours = [np.random.default_rng(0), np.random.RandomState(0), random.Random(0), torch.Generator()]
    transforms = [torch.nn.Identity(), Holder(R=ours[0], again=ours[0]), Holder(R=ours[1], inner={"r": ours[2]})]
    data = Holder(transform=Holder(transforms=transforms), gen=ours[3], rows=list(range(1000)), numpy=np, torch=torch)
    data.itself = data
    found = held_by(Subset(data, [0]))  # type: ignore[arg-type]
    assert sorted(map(id, found)) == sorted(map(id, ours))


def test_no_code_of_a_data_set_is_run() -> None:
    class Watchful(Holder):
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def __iter__(self) -> Any:
            raise AssertionError

    assert len(held_by(Watchful(inner=Watchful(r=random.Random(1))))) == 1


def _python(one: Any, seed: int | None = None) -> None:
    one.random() if seed is None else one.seed(seed)


def _torch(one: Any, seed: int | None = None) -> None:
    torch.rand(3, generator=one) if seed is None else one.manual_seed(seed)


def _legacy(one: Any, seed: int | None = None) -> None:
    one.normal(size=400_000) if seed is None else one.seed(seed)  # two thousand states of the twister


def _modern(one: Any, seed: int | None = None) -> None:
    if seed is None:
        one.normal(size=10)
    else:
        one.bit_generator.state = np.random.default_rng(seed).bit_generator.state


KINDS = [
    (random.Random(0), _python),
    (torch.Generator(), _torch),
    (np.random.RandomState(0), _legacy),
    (np.random.default_rng(0), _modern),
]


@pytest.mark.parametrize(("one", "use"), KINDS, ids=["python", "torch", "numpy's old", "numpy's new"])
def test_draws_count_only_where_no_seed_was_given(one: Any, use: Callable[..., None]) -> None:
    [before] = read([one])
    assert not drawn_from(before)
    use(one)
    assert drawn_from(before)
    use(one, 77)
    use(one)
    assert not drawn_from(before)


def test_the_default_generators_are_read_without_drawing() -> None:
    before = read(defaults())
    assert [one.state for one in before] == [one.state for one in read(defaults())]
    assert all(one.state for one in before)
