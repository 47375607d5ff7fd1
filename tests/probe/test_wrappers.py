"""What several streams want to hear of is wrapped once, and given back."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.utils.data import DataLoader

from distdoctor.probe import wrappers
from distdoctor.probe.context import Rank
from distdoctor.probe.samples import stream
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.probe_settings import ProbeSettings


def with_call(function: Any) -> Any:
    owner: Any = ModuleType("owner")
    owner.call = function
    return owner


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    wrappers.remove_all()


def test_all_who_listen_share_one_wrapper_and_the_first_is_nearest_to_the_call() -> None:
    heard: list[object] = []
    owner = with_call(lambda x, y=0: heard.append(("call", x, y)))
    original = owner.call

    for name in ("first", "second"):
        wrappers.listen(
            owner,
            "call",
            before=lambda x, name=name: heard.append((name, "before", x)),  # type: ignore[misc]
            after=lambda name=name: heard.append((name, "after")),  # type: ignore[misc]
        )
    owner.call(1, y=2)

    assert heard == [
        ("second", "before", 1), ("first", "before", 1), ("call", 1, 2), ("first", "after"), ("second", "after"),
    ]  # fmt: skip
    wrappers.remove_all()
    assert owner.call is original


def test_what_is_raised_goes_through_one_line_of_ours_and_ends_nothing() -> None:
    def fails() -> None:
        raise StopIteration

    heard: list[str] = []
    owner = with_call(fails)
    for name in ("first", "second"):
        wrappers.listen(
            owner, "call", before=lambda _, name=name: heard.append(name), after=lambda: heard.append("ended")
        )  # type: ignore[misc]

    with pytest.raises(StopIteration) as raised:
        owner.call()

    frames = traceback.extract_tb(raised.value.__traceback__)
    assert [frame.name for frame in frames if frame.filename.startswith(wrappers.__file__)] == ["call"]
    assert heard == ["second", "first"]


def test_a_warning_names_the_line_that_it_names_without_us() -> None:
    owner = with_call(lambda: warnings.warn("watch out", stacklevel=2))
    wrappers.listen(owner, "call", before=lambda _: None)

    with pytest.warns(UserWarning, match="watch out") as warned:
        owner.call()

    assert warned[0].filename == __file__


def test_a_loader_that_warns_names_the_line_that_it_names_without_us(tmp_path: Path) -> None:
    def named() -> list[tuple[str, int]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            next(iter(DataLoader([1, 2], pin_memory=True)))  # type: ignore[arg-type]
        return [(one.filename, one.lineno) for one in caught]

    bare = named()
    rank = Rank(str(tmp_path), ProbeSettings())
    rank.trace = TraceWriter(str(tmp_path), 0, 1, 0, 0)
    stream.install(rank)

    assert named() == bare
    rank.silent = True  # its hooks stay


def test_a_name_that_this_torch_does_not_have_is_no_trouble() -> None:
    assert not wrappers.listen(ModuleType("owner"), "call", after=lambda: None)
