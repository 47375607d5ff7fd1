"""Settings: `[tool.distdoctor]` in pyproject.toml, then `DISTDOCTOR_*` variables, then the command line, the last one wins."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from distdoctor.errors import UnreadableRecording, WrongUse
from distdoctor.recording.files import read_bytes
from distdoctor.recording.trace.probe_settings import VARIABLE as PROBE

if TYPE_CHECKING:
    from distdoctor.plugins import Plugins

# Variables that are no settings: what the ranks are told, and switches of the user's (docs/configuration.md).
_SWITCHES = (PROBE, "DISTDOCTOR_DEBUG", "DISTDOCTOR_COLLECTIVES")


class Settings(msgspec.Struct, rename="kebab", forbid_unknown_fields=True, frozen=True):
    """Every setting with its default. Keys are written with dashes in pyproject.toml."""

    ignore: list[str] = []
    """Codes or slugs of findings that are accepted."""
    fail_on: Literal["error", "warning", "note", "never"] = "error"
    no_plugin: list[str] = []
    """Plugins that are left out."""
    output_format: str = "text"
    on_hang: Literal["report", "abort", "wait"] | None = None
    """None: report on a terminal, abort elsewhere."""
    hang_after: float | None = None
    """Seconds; None: the timeout of the process group decides."""
    notify: list[str] = []
    """Ways to send an alert and the report, as NAME or NAME:WHERE."""


LARGEST_BYTES = 4 << 20  # of a pyproject.toml
_LISTS = ("ignore", "no-plugin", "notify")
NAMES = tuple(field.encode_name for field in msgspec.structs.fields(Settings))


def load(
    given: Mapping[str, Any], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings that hold: `given` are the values of the command line by name, None or empty for those left out.

    WrongUse: an unknown key or a value that does not fit, with its path.
    """
    environment = os.environ if environment is None else environment
    values, source = _from_pyproject(folder or _working_directory())
    _require_own_targets(_check(values, source), source)
    for name, value in _from_environment(environment).items():
        _check({name: value}, f"DISTDOCTOR_{name.upper().replace('-', '_')}")
        values[name] = value
    values.update(
        {name.replace("_", "-"): _plain(value) for name, value in given.items() if value not in (None, (), [])}
    )
    return _check(values, "the command line")


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise WrongUse("the working directory is gone", way_out="Change into a folder that exists.") from None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _check(values: Mapping[str, Any], source: str) -> Settings:
    try:
        return msgspec.convert(dict(values), Settings)
    except msgspec.ValidationError as trouble:
        raise WrongUse(f"{source}: {trouble}", way_out=f"There are {', '.join(NAMES)}.") from None


def _require_own_targets(settings: Settings, source: str) -> None:
    """WrongUse: the file says to which address or folder a report is sent; a cloned repository could say it as well."""
    if not settings.notify:
        return
    from distdoctor.notify.ways import chosen_by_a_file

    if chosen := chosen_by_a_file(settings.notify):
        name = chosen.partition(":")[0].strip()
        raise WrongUse(
            f"{source}: notify = {chosen!r} says where a report is sent, which no file may choose",
            way_out=f"Write {name!r} there, or pass --notify {chosen}.",
        )


def _from_pyproject(folder: Path) -> tuple[dict[str, Any], str]:
    """The table of the nearest pyproject.toml that has one, from `folder` upward."""
    import tomllib

    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if not _is_trusted(file):
            continue
        try:
            table = tomllib.loads(read_bytes(file, LARGEST_BYTES).decode("utf-8")).get("tool", {})
        except UnreadableRecording:
            continue
        except (ValueError, RecursionError) as trouble:
            if place != folder:
                continue  # somebody else's broken file in a folder above is not ours to complain about
            raise WrongUse(
                f"{file} is not TOML: {trouble}", way_out="Correct the file; other tools read it too."
            ) from None
        ours = table.get("distdoctor") if isinstance(table, dict) else None
        if ours is not None and not isinstance(ours, dict):
            raise WrongUse(f"{file} [tool.distdoctor] is no table", way_out=f"There are {', '.join(NAMES)}.")
        if ours is not None:
            return ours, f"{file} [tool.distdoctor]"
    return {}, ""


def _is_trusted(file: Path) -> bool:
    """Settings can silence findings: those of a file count that is ours, root's or of whoever owns the working directory."""
    try:
        about = file.stat()
        return about.st_uid in (os.geteuid(), 0, os.stat(".").st_uid) and not about.st_mode & 0o002
    except OSError:
        return False


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    known = {f"DISTDOCTOR_{name.upper().replace('-', '_')}": name for name in NAMES}
    found: dict[str, Any] = {}
    for variable, value in environment.items():
        if variable in known:
            name = known[variable]
            found[name] = [part.strip() for part in value.split(",")] if name in _LISTS else value
        elif variable.startswith("DISTDOCTOR_") and variable not in _SWITCHES:
            close = difflib.get_close_matches(variable, known, n=1, cutoff=0.8)
            if close:
                print(f"distdoctor: the variable {variable} means nothing; did you mean {close[0]}?", file=sys.stderr)
    return found


def load_plugins(settings: Settings) -> Plugins:
    """The plugins without those left out; the ones in trouble are named on stderr.

    WrongUse: `ignore` holds a word that stands for no check of theirs.
    """
    from distdoctor import plugins

    found = plugins.load(settings.no_plugin)
    for plugin in found.loaded:
        if plugin.trouble:
            print(
                f"distdoctor: plugin {plugin.name} of {plugin.distribution} is left out: {plugin.trouble}",
                file=sys.stderr,
            )
    if not settings.no_plugin and not any(plugin.trouble for plugin in found.loaded):
        _require_known(settings.ignore, found)
    return found


def _require_known(ignored: Sequence[str], plugins: Plugins) -> None:
    """A typo would accept nothing, in silence."""
    from distdoctor.lint.rules import all_rules

    known = {name.lower() for check in plugins.checks.values() for name in (check.code, check.slug, *check.formerly)}
    known |= {name.lower() for rule in all_rules() for name in (rule.code, rule.slug)}
    known |= {word for name in known for word in name.split()}
    for word in ignored:
        name = word.strip().lower()
        if name and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            is_code = name[:2].isalpha() and name[2:].isdigit()  # of codes the nearest one is another illness
            guess = f"Did you mean {close[0]}? " if close and not is_code else ""
            raise WrongUse(f"--ignore {word}: there is no such check", way_out=f"{guess}`distdoctor rules` lists them.")
