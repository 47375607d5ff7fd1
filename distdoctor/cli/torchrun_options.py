"""Every option of torchrun as an option of ours, read off torch's own parser, so that none is missing or out of date."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Mapping
from typing import Any

import click
import rich_click

# Options of torchrun that get one more spelling here.
ALIASES = {"nproc_per_node": ("--nproc",)}
SHORT = {  # name -> value and help of those that stand among our own
    "nproc_per_node": ("N", "Ranks on this node: N, auto, cpu or gpu."),
    "nnodes": ("N", "Nodes, or MIN:MAX."),
    "module": ("", "Run a module, as `python -m` does."),
}
PREFIX = "torchrun_"
PANEL = "torchrun: ranks, nodes, rendezvous, output"


def torchrun_options(taken: Collection[str] = ()) -> list[click.Option]:
    """The options, each in all spellings that torchrun knows. Imports torch. Names in `taken` are left to those who have them."""
    return [
        _option(action, taken)
        for action in _actions().values()
        if not set(map(dashed, action.option_strings)) <= set(taken)
    ]


def torchrun_arguments(values: Mapping[str, Any]) -> list[str]:
    """The given values of those options as arguments for torchrun's own parser, which reads PET_* variables for the rest."""
    arguments: list[str] = []
    for name, action in _actions().items():
        value = values.get(PREFIX + name)
        if value is None or value is False:
            continue
        flag = next(spelling for spelling in action.option_strings if spelling.startswith("--"))
        arguments += [flag] if action.nargs == 0 else [f"{flag}={value}"]
    return arguments


def dashed(token: str) -> str:
    """`--nproc_per_node` as `--nproc-per-node`: torchrun takes both spellings of everything, the help shows one."""
    return token.replace("_", "-") if token.startswith("--") else token


def _actions() -> dict[str, argparse.Action]:
    """torchrun's options by name."""
    from torch.distributed.run import get_args_parser

    actions = get_args_parser()._actions
    return {action.dest: action for action in actions if action.option_strings and action.dest != "help"}


def _option(action: argparse.Action, taken: Collection[str]) -> click.Option:
    spellings = list(dict.fromkeys(dashed(s) for s in (*action.option_strings, *ALIASES.get(action.dest, ()))))
    spellings = [s for s in spellings if s not in taken]
    words = re.sub(r"\s+", " ", (action.help or "").replace("%%", "%").replace("%(default)s", str(action.default)))
    value, words = SHORT.get(action.dest, ("", words))
    spellings.sort(key=lambda one: one not in ALIASES.get(action.dest, ()))  # our own spelling first
    panel = PANEL if action.dest not in SHORT else "Options"
    if action.nargs == 0:
        return rich_click.RichOption([*spellings, PREFIX + action.dest], is_flag=True, help=words, panel=panel)
    choices = list(action.choices) if action.choices else []
    metavar = value or ("|".join(map(str, choices)) if choices else _metavar(action))
    return rich_click.RichOption([*spellings, PREFIX + action.dest], type=str, metavar=metavar, help=words, panel=panel)


def _metavar(action: argparse.Action) -> str:
    return {int: "N", float: "SECONDS"}.get(action.type, "TEXT") if isinstance(action.type, type) else "TEXT"
