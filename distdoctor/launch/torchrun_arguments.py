"""torchrun's command line, read by torchrun's own parser, so that PET_* variables and future flags mean what they mean there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from distdoctor.errors import WrongUse


def parse(options: Sequence[str], script: Sequence[str]) -> argparse.Namespace:
    """The namespace that torchrun works with. `script` is the script, module or program with its arguments.

    WrongUse: torchrun's parser refuses the options, in its own words.
    """
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()

    def refuse(message: str) -> None:
        raise WrongUse(message, way_out="`distdoctor run --help` lists what torchrun takes.")

    parser.error = refuse  # type: ignore[method-assign,assignment]
    # The script's own arguments stay away from the parser: argparse calls `train.py --nproc 7` ambiguous.
    arguments = parser.parse_args([*options, script[0]])
    arguments.training_script_args = list(script[1:])
    return arguments
