"""`distdoctor skill install`: tell coding agents how to use distdoctor."""

from __future__ import annotations

from pathlib import Path

import click
import rich_click

from distdoctor.errors import WrongUse

PLACE = Path(".agents/skills/distdoctor/SKILL.md")
SOURCE = Path(__file__).parent / "skills" / "SKILL.md"


@click.group(cls=rich_click.RichGroup)
def skill() -> None:
    """For coding agents: how to run distdoctor, read its report, and apply what it prescribes."""


@skill.command()
@click.option(
    "--project",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="The project's folder; by default this one.",
)
@click.option("--force", is_flag=True, help="Replace a modified SKILL.md.")
def install(project: Path, force: bool) -> None:
    """Write .agents/skills/distdoctor/SKILL.md into a project."""
    path = project / PLACE
    text = SOURCE.read_text("utf-8")
    if path.exists() and path.read_text("utf-8", errors="replace") != text and not force:
        raise WrongUse(f"{path} is there already, and differs", way_out="--force replaces it.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as trouble:
        raise WrongUse(
            f"{path} cannot be written: {trouble.strerror}", way_out="Name another folder by --project."
        ) from None
    click.echo(f"distdoctor: wrote {path}", err=True)


@skill.command()
def show() -> None:
    """Print the text that `install` writes."""
    click.echo(SOURCE.read_text("utf-8"), nl=False)
