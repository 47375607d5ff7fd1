"""Healthy programs that look sick: silent while they run, at every moment, and after their end."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from inner_loop import THOROUGH

from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.trace.events import NewGroupBegun, NewGroupDone
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing import Script, recording


def sub_groups() -> Script:
    """Two halves that do different things at different speeds, and meet at the end of a step."""
    script = recording(4).group("left", [0, 1]).group("right", [2, 3])
    for step in range(4):
        for _ in range(step + 1):
            script.collective("all_reduce", [8], group="left", site="a.py:1 f")
        script.collective("broadcast", [9], group="right", site="a.py:2 f").compute(0.5, only=2)
        script.collective("barrier", site="a.py:3 f").step()
    return script


def two_models() -> Script:
    """A GAN: two optimizers in turn, with more steps of one than of the other."""
    script = recording(2)
    for _ in range(4):
        script.collective("all_reduce", [100], native=True, site="gan.py:10 critic").step()
        script.collective("all_reduce", [100], native=True, site="gan.py:10 critic").step()
        script.collective("all_reduce", [50], native=True, site="gan.py:20 generator").step()
    return script


def joined() -> Script:
    """Uneven inputs under join(): a rank that has run out shadows the others from another line, and makes no steps."""
    script = recording(3)
    for step in range(5):
        through = step > 2
        if not through:
            script.draw(loop_site="a.py:5 f", made_site="a.py:1 f", batch_size=2)
        else:
            script.draw([0, 1], loop_site="a.py:5 f", made_site="a.py:1 f", batch_size=2)
            if step == 3:
                script.exhausted(2)
        script.collective("all_reduce", [1], asynchronous=True, site="a.py:6 f")
        if through:
            script.instead(2, site="a.py:4 f")
        script.collective("all_reduce", [100], native=True, site="a.py:7 f")
        if through:
            script.instead(2, site="a.py:4 f")
        script.wait().step([0, 1] if through else None)
    return script.exhausted()


def object_collectives() -> Script:
    """Pickled objects of another size on every rank."""
    script = recording(3)
    for step in range(3):
        script.collective("all_gather_into_tensor", [1], dtype="int64", flags=CallFlag.OBJECT, site="a.py:1 f")
        script.collective("all_gather_into_tensor", [100 + step], dtype="uint8", flags=CallFlag.OBJECT, site="a.py:1 f")
        script.instead(1, shape="[7]").step()
    return script


def checkpoint_of_rank_zero() -> Script:
    """Rank 0 saves for a while, the others wait in a barrier."""
    script = recording(4)
    for step in range(4):
        script.collective("all_reduce", [100], native=True, site="a.py:1 f").step()
        if step % 2:
            script.compute(8.0, only=0).collective("barrier", site="a.py:3 f")
    return script


def pipeline() -> Script:
    """Four stages, several micro-batches, activations forward and gradients backward."""
    script = recording(4)
    for _ in range(3):
        for micro in range(3):
            for stage in range(3):
                script.recv(stage + 1, stage, [64], tag=micro, site="a.py:1 f").send(
                    stage, stage + 1, [64], tag=micro, site="a.py:2 f"
                )
        for micro in range(3):
            for stage in range(3, 0, -1):
                script.send(stage, stage - 1, [64], tag=10 + micro, site="a.py:3 f")
                script.recv(stage - 1, stage, [64], tag=10 + micro, site="a.py:4 f")
        script.collective("all_reduce", [1], site="a.py:9 f").step()
    return script


def late_waits() -> Script:
    """Handles that are waited for much later, in an order of their own."""
    script = recording(3)
    for _ in range(3):
        for size in (10, 20, 30):
            script.collective("all_reduce", [size], asynchronous=True, site="a.py:1 f")
        script.collective("barrier", site="a.py:2 f").compute(0.3, only=1).wait().step()
    return script


def unequal_splits() -> Script:
    script = recording(3)
    for step in range(4):
        script.collective("all_to_all_single", [10], site="a.py:1 f").instead(1, shape=f"[{30 + step}]").step()
    return script


def rotating_roots() -> Script:
    script = recording(4)
    for step in range(8):
        script.collective("broadcast", [10], root=step % 4, site="a.py:1 f")
        script.collective("gather", [10], root=(step + 1) % 4, site="a.py:2 f").step()
    return script


def another_path_on_rank_zero() -> Script:
    """`if rank == 0: x = load(); broadcast(x) else: broadcast(y)`: two lines for one call, on every turn."""
    script = recording(4)
    for _ in range(6):
        script.collective("broadcast", [10], root=0, site="a.py:3 f").instead(0, site="a.py:1 f")
        script.collective("broadcast", [10], root=0, site="a.py:4 f").instead(0, site="a.py:2 f").step()
    return script


def scalars_of_two_shapes() -> Script:
    script = recording(2)
    for _ in range(3):
        script.collective("all_reduce", [1], site="a.py:1 f").instead(1, shape="[]").step()
    return script


def receive_from_anybody() -> Script:
    """A parameter server."""
    script = recording(3)
    for _ in range(3):
        for worker in (1, 2):
            script.send(worker, 0, [8], site="a.py:1 f")
        for _ in range(2):
            script.recv(0, -1, [8], site="a.py:2 f")
        script.collective("broadcast", [8], root=0, site="a.py:3 f").step()
    return script


def groups_made_by_all() -> Script:
    script = recording(4).group("1", [0, 1])
    script.note(NewGroupBegun((0, 1), done_ns=1), site="a.py:1 f")
    script.note(NewGroupDone((0, 1), "1"), [0, 1])
    return script.collective("barrier", site="a.py:2 f").step()


def last_words_of_rank_zero() -> Script:
    """Rank 0 stays long after the others have left, to evaluate alone."""
    script = recording(4)
    for _ in range(3):
        script.collective("all_reduce", [8], site="a.py:1 f").step()
    return script.exits([1, 2, 3]).compute(30.0, only=0)


TWINS: list[Callable[[], Script]] = [
    sub_groups, two_models, joined, object_collectives, checkpoint_of_rank_zero, pipeline, late_waits, unequal_splits,
    rotating_roots, another_path_on_rank_zero, scalars_of_two_shapes, receive_from_anybody, groups_made_by_all,
    last_words_of_rank_zero,
]  # fmt: skip


@pytest.mark.parametrize("twin", TWINS)
def test_it_is_silent_at_every_moment_and_after_the_end(twin: Callable[[], Script]) -> None:
    for seed in range(3) if THOROUGH else (2,):
        film = twin().film(random.Random(seed), exits=True, rendezvous=seed == 2 and twin is not receive_from_anybody)
        assert all(runner.end is not None for runner in film.runners.values()), "the twin itself hangs"
        for moment in film.moments:
            assert Verdict.of(film.read(moment)).incidents == ()
        assert Verdict.of(film.read(film.last_ns, running=False)).incidents == ()


def test_two_threads_of_a_rank_that_use_groups_of_their_own_are_no_deadlock() -> None:
    """The main threads are in one group, the checkpoint threads in another, and on each rank one of them is late."""
    script = recording(2).group("checkpoint", [0, 1])
    for _ in range(3):
        script.collective("all_reduce", [8], site="a.py:1 f")
        script.collective("all_reduce", [9], group="checkpoint", thread=1, site="a.py:2 f").step()
    script.collective("all_reduce", [8], only=0, site="a.py:1 f")
    script.collective("all_reduce", [9], group="checkpoint", thread=1, only=1, site="a.py:2 f")

    assert Verdict.of(script.live(silent_for=3)).incidents == ()
