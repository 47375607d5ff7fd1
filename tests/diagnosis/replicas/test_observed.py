"""What counts as a sign that parameters of several ranks are replicas of one another, where nothing but the bits tells."""

from __future__ import annotations

from dataclasses import replace

from distdoctor.diagnosis.replicas.observed import ParameterCourse, equal_sets

COURSE = ParameterCourse("[4]", "Linear", 1, (2, 3, 4), (11, 12, 13), (0.5, 0.4, 0.3))


def test_a_parameter_that_gradients_change_in_the_same_way_is_held_by_replicas() -> None:
    assert equal_sets({"body.weight": {0: COURSE, 1: COURSE}}) == {(0, 1): frozenset({"body.weight"})}


def test_what_weight_decay_alone_changes_is_no_sign() -> None:
    """A branch that adds nothing at first, as the last scale of a residual block that begins at zero."""
    idle = replace(COURSE, grads=(7, 7, 7), norms=(0.0, 0.0, 0.0))

    assert equal_sets({"branch.weight": {0: idle, 1: idle}}) == {}
