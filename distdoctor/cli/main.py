"""The command `distdoctor`: which commands there are, and how errors reach the user."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click
import rich_click

from distdoctor.cli.examples import with_examples
from distdoctor.errors import DoctorError
from distdoctor.report.printable import printable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # where no file is named, it is our own output that has no room
# name -> module.attribute; a command's module is imported when it is called or listed, and none of them imports torch.
COMMANDS = {
    "run": "distdoctor.cli.run:run",
    "check-grads": "distdoctor.cli.check_grads:check_grads",
    "check-memory": "distdoctor.cli.check_memory:check_memory",
    "check-data": "distdoctor.cli.check_data:check_data",
    "check-resume": "distdoctor.cli.check_resume:check_resume",
    "hang-dump": "distdoctor.cli.hang_dump:hang_dump",
    "compare": "distdoctor.cli.compare:compare",
    "advise": "distdoctor.cli.advise:advise",
    "examine": "distdoctor.cli.examine:examine",
    "lint": "distdoctor.cli.lint:lint",
    "bundle": "distdoctor.cli.bundle:bundle",
    "watch": "distdoctor.cli.watch:watch",
    "show": "distdoctor.cli.show:show",
    "report": "distdoctor.cli.report:report",
    "runs": "distdoctor.cli.runs:runs",
    "diff": "distdoctor.cli.diff:diff",
    "rules": "distdoctor.cli.rules:rules",
    "explain": "distdoctor.cli.explain:explain",
    "strategies": "distdoctor.cli.strategies:strategies",
    "plugins": "distdoctor.cli.plugins:plugins",
    "preflight": "distdoctor.cli.preflight:preflight",
    "env": "distdoctor.cli.env:env",
    "schema": "distdoctor.cli.schema:schema",
    "completion": "distdoctor.cli.completion:completion",
    "skill": "distdoctor.cli.skill:skill",
}


class Commands(rich_click.RichGroup):
    """A group whose commands are imported one by one, when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, name = where.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        command.help = with_examples(cmd_name, command.help or "")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            guess = f"Did you mean {close[0]}?" if close else "`distdoctor --help` lists them."
            raise click.UsageError(f"there is no command {args[0]}\n{guess}", ctx)
        return super().resolve_command(ctx, args)


# An option and its value stand in one column, so that the words beside them get the width.
LOOK = {
    "options_table_column_types": ["required", "opt_all_metavar", "help"],
    "append_metavars_help_string": "{}",
}


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "rich_help_config": LOOK})
@click.version_option(package_name="distdoctor", message="%(prog)s %(version)s")
def cli() -> None:
    """Why does it hang? Are my replicas still the same model? Is every rank reading the right data? Where did the memory go?

    `distdoctor run train.py` starts a PyTorch job as torchrun would, records what every rank does, and reports what is
    wrong with it, with the rank, the line and the fix.

    Exit codes: 0 healthy, 1 findings or a failed job, 2 wrong use, 3 a hang was diagnosed, 4 nothing to inspect, 5 could not
    look.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; errors that a user can meet are two lines on stderr, never a traceback."""
    _whole_streams()
    try:
        code = cli.main(
            args=None if arguments is None else list(arguments), prog_name="distdoctor", standalone_mode=False
        )
    except DoctorError as error:
        code = _say(str(error), error.way_out, error.exit_code)
    except click.UsageError as error:
        code = _say(*_words(error), 2)
    except click.ClickException as error:
        code = _say(error.format_message(), "", error.exit_code)
    except click.Abort:
        code = _say("interrupted", "", 130)
    except KeyboardInterrupt:
        code = _say("interrupted", "", 130)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more when it flushes at exit.
        sys.stdout = None
        code = 141
    except Exception as error:
        if os.environ.get("DISTDOCTOR_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in _FULL and not error.filename:
            sys.stdout = None
            sys.exit(_not_written(error, 5))
        what = str(error).partition("\n")[0][:200]
        way_out = "DISTDOCTOR_DEBUG=1 shows where. If a file was read, it may be damaged: copy it again."
        code = _say(f"could not go on: {type(error).__name__}: {what}", way_out, 5)
    sys.exit(_flushed(code if isinstance(code, int) else 0))


def _whole_streams() -> None:
    """Streams that were closed before we started swallow what they get, and no character is one too many for the others."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - until we end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """The exit code, once everything is written; 5 where the disk or the device would not take it."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None
        return code or 141
    except OSError as trouble:
        sys.stdout = None
        return _not_written(trouble, code or 5)
    return code


def _not_written(trouble: OSError, code: int) -> int:
    return _say(f"the output cannot be written: {trouble.strerror}", "Take -o FILE on another disk.", code)


def _say(message: str, way_out: str, code: int) -> int:
    print(f"distdoctor: {printable(message)}", file=sys.stderr)
    if way_out:
        print(f"  {printable(way_out)}", file=sys.stderr)
    return code


def _words(error: click.UsageError) -> tuple[str, str]:
    """What is wrong, and what to do: click's suggestion where it has one, else where to look."""
    message, _, rest = error.format_message().partition("\n")
    where = error.ctx.command_path if error.ctx else "distdoctor"
    return message, rest or f"`{where} --help` says how it is used."
