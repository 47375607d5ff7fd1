"""Every flag of torchrun is a flag of `distdoctor run`, in every spelling, with the same meaning."""

from __future__ import annotations

import argparse
from typing import Any

import click
import pytest
from torch.distributed.run import get_args_parser

from distdoctor.cli.run import MORE_OPTIONS, run
from distdoctor.cli.torchrun_options import torchrun_arguments
from distdoctor.launch.torchrun_arguments import parse

ACTIONS = [a for a in get_args_parser()._actions if a.option_strings and a.dest not in ("help", "print_completion")]
SPELLINGS = [(spelling, action) for action in ACTIONS for spelling in action.option_strings]


def value_for(action: argparse.Action) -> str:
    if action.choices:
        return str(list(action.choices)[-1])
    return {int: "3", float: "0.5"}.get(action.type, "7") if isinstance(action.type, type) else "7"


def through_ours(words: list[str]) -> tuple[argparse.Namespace, click.Context]:
    """The namespace that our command line hands to torchrun."""
    context = run.make_context("run", [*words, "train.py", "--lr", "1"])
    values: dict[str, Any] = context.params
    return parse(torchrun_arguments(values), values["script"]), context


@pytest.mark.parametrize(("spelling", "action"), SPELLINGS, ids=[spelling for spelling, _ in SPELLINGS])
def test_a_flag_means_what_it_means_for_torchrun(spelling: str, action: argparse.Action) -> None:
    words = [spelling] if action.nargs == 0 else [spelling, value_for(action)]

    ours, _ = through_ours(words)

    assert vars(ours) == vars(get_args_parser().parse_args([*words, "train.py", "--lr", "1"]))


@pytest.mark.parametrize("words", [["-r3"], ["--redirects=0:1,1:2"], ["-mt", "3"], ["--nproc", "4"], ["--nproc=auto"]])
def test_short_joined_and_aliased_forms_are_understood(words: list[str]) -> None:
    ours, _ = through_ours(words)

    plain = [word.replace("--nproc", "--nproc-per-node") for word in words]
    assert vars(ours) == vars(get_args_parser().parse_args([*plain, "train.py", "--lr", "1"]))


def test_no_option_of_ours_hides_one_of_torchrun() -> None:
    _, context = through_ours([])
    ours = {spelling for option in run.params for spelling in option.opts}

    assert not ours & {spelling for spelling, _ in SPELLINGS}
    assert len(context.meta[MORE_OPTIONS]) > len(ACTIONS)


def test_pet_variables_are_defaults_and_flags_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")

    ours, _ = through_ours(["--max-restarts", "1"])

    assert (ours.nproc_per_node, ours.max_restarts) == ("3", 1)
