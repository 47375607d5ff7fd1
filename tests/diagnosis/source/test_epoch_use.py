"""What a data set makes of the epoch that it is told, by its source."""

from __future__ import annotations

import pytest

from distdoctor.diagnosis.source.epoch_use import epoch_use, handed_on, shuffles_by_epoch

DATA = """
import random
class Base(Dataset):
    def set_epoch(self, epoch):
        self.epoch = epoch
        self._arrange()
    def _arrange(self):
        self.order = sorted(range(9))
class Stream(Base):
    def draw(self):
        return random.Random(self.{read}).sample(range(9), 9)
    def __iter__(self):
        {lines}
        yield from self.draw()
"""


@pytest.mark.parametrize(
    ("read", "lines", "found"),
    [
        ("epoch", "pass", ("epoch", 11, True)),
        ("order", "pass", ("order", 11, True)),
        ("seed", "pass", ("", 0, False)),
        ("epoch", "self.epoch += 1", ("", 0, False)),
        ("epoch", "if self.fixed: return", ("epoch", 11, False)),
        ("epoch", "if get_worker_info() is None: return", ("epoch", 11, True)),
    ],
    ids=["in a method", "made of it", "not at all", "counted by itself", "unless it is fixed", "whoever asks"],
)
def test_where_samples_are_made_with_what_set_epoch_changes(
    read: str, lines: str, found: tuple[str, int, bool]
) -> None:
    use = epoch_use({"data.py": DATA.format(read=read, lines=lines)}, "Stream")

    assert use is not None
    assert (use.attribute, use.read.line, use.always) == found


def test_of_a_wrapper_the_only_data_with_a_set_epoch_are_meant_and_without_a_source_nothing_is_known() -> None:
    wrapped = "class Wrapped(IterableDataset):\n    def __iter__(self):\n        yield from self.dataset\n"
    alone = DATA.replace("class Base(Dataset)", "class Stream(Dataset)").replace("class Stream(Base):", "")
    text = alone.format(read="epoch", lines="pass") + wrapped

    use = epoch_use({"data.py": text}, "Wrapped")

    assert use is not None
    assert use.attribute == "epoch"
    assert epoch_use({"data.py": wrapped}, "Wrapped") is None


HOLDING = """
class Order:
    def set_epoch(self, epoch):
        self.epoch = epoch
    def drawn(self):
        return Random({by}).sample(range(9), 9)
class Other(Dataset):
    def set_epoch(self, epoch):
        self.epoch = epoch
class Stream(IterableDataset):
    def __init__(self):
        self.order = {order}
    {tells}
    def __iter__(self):
        yield from self.order.drawn()
"""
TELLS = "def set_epoch(self, epoch): self.order.set_epoch(epoch)"


@pytest.mark.parametrize("tells", ["", TELLS], ids=["told by itself", "told by its stream"])
@pytest.mark.parametrize(("by", "line"), [("self.epoch", 6), ("3", 0)])
def test_of_data_that_hold_what_is_told_the_epoch_that_is_meant(tells: str, by: str, line: int) -> None:
    use = epoch_use({"data.py": HOLDING.format(by=by, order="Order()", tells=tells)}, "Stream", ["Order"])

    assert use is not None
    assert use.read.line == line


def test_what_a_library_shuffles_by_the_epoch_is_read_where_the_data_read_it() -> None:
    use = epoch_use(
        {"data.py": HOLDING.format(by="3", order="DistributedSampler(range(9))", tells=TELLS)},
        "Stream",
        ["DistributedSampler"],
    )

    assert use is not None
    assert (use.attribute, use.read.line, use.always) == ("order", 15, True)


def test_a_stream_that_draws_in_a_method_of_its_own_shuffles_by_epoch() -> None:
    assert shuffles_by_epoch({"data.py": DATA.format(read="epoch", lines="pass")}, "Stream")
    assert not shuffles_by_epoch({"data.py": DATA.format(read="seed", lines="pass")}, "Stream")


WRAPPER = """class Paired:
    def set_epoch(self, epoch):
        {told}
"""


@pytest.mark.parametrize(("told", "line"), [("self.left.sampler.set_epoch(epoch)", 3), ("self.epoch = epoch", 2)])
def test_the_line_that_hands_the_epoch_on_is_known_where_one_class_of_the_users_does(told: str, line: int) -> None:
    text = WRAPPER.format(told=told)

    assert handed_on({"/job/data.py": text}).line == line
    assert not handed_on({"/job/data.py": text + text.replace("Paired", "Other")})
