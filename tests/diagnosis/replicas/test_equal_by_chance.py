"""What stays equal in the first steps without being kept equal."""

from __future__ import annotations

from distdoctor.diagnosis.replicas.observed import ParameterCourse, equal_sets


def course(params: tuple[int, ...], grads: tuple[int, ...]) -> ParameterCourse:
    return ParameterCourse("[4]", "Linear", 1, params, grads, (0.5, 0.5, 0.5))


DECAYED = {rank: course((2, 3, 4), (10 + rank, 20 + rank, 30 + rank)) for rank in (0, 1)}
APART = {rank: course((5 + rank, 7 + rank, 9 + rank), (10 + rank, 20 + rank, 30 + rank)) for rank in (0, 1)}
AVERAGED = {rank: course((2, 3, 4), (10, 20, 30)) for rank in (0, 1)}


def test_what_weight_decay_alone_moves_is_no_replica_where_the_rest_trains_apart() -> None:
    assert equal_sets({"norm.weight": DECAYED, "conv.weight": APART}) == {}


def test_averaged_weights_are_replicas_although_each_rank_has_its_own_gradients() -> None:
    assert equal_sets({"norm.weight": DECAYED, "conv.weight": DECAYED}) == {
        (0, 1): frozenset({"norm.weight", "conv.weight"})
    }


def test_averaged_gradients_make_replicas_beside_parts_of_each_rank() -> None:
    assert equal_sets({"norm.weight": AVERAGED, "conv.weight": APART}) == {(0, 1): frozenset({"norm.weight"})}
