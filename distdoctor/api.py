"""distdoctor from Python: diagnose what was recorded, record this process or the ranks that it starts, name phases.

report = distdoctor.diagnose(".distdoctor/runs/latest")     # the newest run without a path
with distdoctor.watch() as watched:                         # a notebook, or a rank of your own launcher
    train()
print(watched.diagnose())
distdoctor.watch(model, folder="runs/one")                  # this rank, from here on; every rank holds a replica of the model
with distdoctor.phase("evaluation"):                        # in a recorded rank; nothing happens elsewhere
    evaluate()
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distdoctor import plugins
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.errors import WrongUse
from distdoctor.launch import post_mortem
from distdoctor.launch.environment import environment
from distdoctor.launch.new_run_folder import make_run_folder
from distdoctor.recording.files import write_whole
from distdoctor.recording.trace.layout import STREAMS
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import JOB_FILE

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup


class Report(Diagnosis):
    """A diagnosis that shows itself: as text when printed or at the prompt of IPython, as a page in a notebook."""

    def __repr__(self) -> str:
        from distdoctor.report.verdict import summary

        return f"<distdoctor report: {summary(self)}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows at its prompt."""
        printer.text(repr(self) if cycle else str(self).rstrip("\n"))

    def __str__(self) -> str:
        from distdoctor.report.text import render

        return render(self, base=os.getcwd())

    def _repr_html_(self) -> str:
        """In a frame of its own, so that its style stays there; its link gives the report as JSON."""
        from html import escape

        from distdoctor.report.html import render

        return f'<iframe srcdoc="{escape(render(self))}" width="100%" height="480" sandbox="allow-downloads"></iframe>'

    def to_json(self) -> str:
        """The document of `--output-format json`."""
        from distdoctor.report.json_report import render

        return render(self)


def diagnose(*paths: str | Path, ignore: Iterable[str] = (), executor: Executor | None = None) -> Report:
    """What the checks say about a recorded job: a run folder, a bundle, flight recorder dumps, a log, several parts of one job.

    Without a path the newest run of this folder. `ignore`: codes or slugs of findings that are accepted. Needs no torch.
    `executor` reads flight recorder dumps, in place of this machine's processes; the result is the same.
    NothingToInspect: there is no recording.
    """
    found = plugins.load()
    recording = post_mortem.open_recording(*(Path(path) for path in paths), means=post_mortem.Means(executor))
    recording = replace(recording, sources={**recording.sources, **_cells(paths)})
    made = post_mortem.diagnose(recording, found.checks, found.remedies, tuple(ignore))
    return Report(**{field.name: getattr(made, field.name) for field in fields(made)})


class Watch:
    """Records from when it is entered (with a model: at once). When it is left, the verdict is on stderr, unless another rank may
    still be at work.

    `folder` holds the recording; `diagnose()` examines what is in it by now.
    """

    def __init__(self, folder: Path, *, launches_ranks: bool, says: bool, joins: bool = False) -> None:
        self.folder = folder
        self._joins = joins
        self._launches_ranks = launches_ranks
        self._says = says
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Watch:
        if self._launches_ranks:
            self._stack.enter_context(environment(ProbeSettings().hand_over(self.folder)))
        else:
            self._start()
        return self

    def _start(self) -> None:
        from distdoctor.probe.start import destination, start_here

        settings = ProbeSettings()
        if _is_initialized() and destination() is None:  # what the group did before is not known, and never will be
            settings = ProbeSettings(streams=STREAMS - {"collectives"})
            with contextlib.suppress(OSError):  # without room the training goes on
                if not (self.folder / JOB_FILE).exists():
                    write_whole(self.folder / JOB_FILE, json.dumps({"streams": settings.noted_streams}))
        start_here(str(self.folder), joins=self._joins, settings=settings)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None and not self._launches_ranks:
            from distdoctor.probe.start import note_exception

            note_exception(error)
        self._stack.close()
        if self._says:
            with contextlib.suppress(Exception):  # the training has its result, whatever we have to say
                report = self.diagnose()
                if self._launches_ranks or report.world_size <= 1:
                    print(_last_line(report, self.folder), file=sys.stderr)

    def diagnose(self, ignore: Iterable[str] = ()) -> Report:
        """What the checks say about all that has been recorded by now, of this rank and the others."""
        return diagnose(self.folder, ignore=ignore)


def _last_line(report: Report, folder: Path) -> str:
    """The headline of the root cause, and what the findings are."""
    from distdoctor.report.printable import printable
    from distdoctor.report.text import headline
    from distdoctor.report.verdict import summary

    first = headline(report.findings[0], os.getcwd()) if report.findings else []
    return printable("\n".join([*first, f"distdoctor: {summary(report)} ({os.path.relpath(folder)})"]))


def watch(
    what: str | Path | nn.Module | Iterable[nn.Module] | None = None,
    *,
    folder: str | Path | None = None,
    group: ProcessGroup | None = None,
    launches_ranks: bool = False,
    quiet: bool = False,
) -> Watch:
    """Record this process, in notebooks and launchers of your own: `with watch():`, `watch("runs/one")`, `watch(model)`.

    In a rank (RANK is set, or this is the only process) it records this process while it is entered; enter it before
    `init_process_group`, with the same `folder` on all ranks. With `launches_ranks` it records the ranks that this process starts
    inside, by mp.spawn or as programs. Under `distdoctor run`, and when entered again, recording goes on where it goes already.
    Models, optimizers and loaders are found by themselves. `quiet`: no verdict at the end.

    `watch(model)` also says that each rank (of `group`) holds a replica of the model: the same parameters after every step. It
    records from the call on, also after `init_process_group`, where collectives are left out.

    WrongUse: the process group is there already and no model was named, or ranks share no folder.
    """
    asked, models = _folder_or_models(what, folder)
    if group is not None and not models:
        raise WrongUse(
            "distdoctor.watch() was given a group, but no model", way_out="Name it: watch(model, group=group)."
        )
    if models and launches_ranks:
        raise WrongUse(
            "this process launches ranks, and has no replica of a model itself",
            way_out="Call distdoctor.watch(model) in the function that each rank runs.",
        )
    made = _watch(asked, launches_ranks=launches_ranks, quiet=quiet, late=bool(models))
    if models:
        from distdoctor.probe.start import watch_models

        made._start()
        watch_models(models, _members(group))
    return made


def _watch(folder: str | Path | None, *, launches_ranks: bool, quiet: bool, late: bool) -> Watch:
    going_on = _probe().destination() if _probe() is not None else None
    if going_on is not None and not launches_ranks:
        waits = _probe().recorded_in() is None
        return Watch(Path(going_on), launches_ranks=False, says=not quiet and not waits and _is_alone(), joins=waits)
    if not launches_ranks:
        _refuse(folder, late=late)
    made = make_run_folder("watch", Path(folder) if folder is not None else None, shared=folder is not None)
    # A child of multiprocessing that shares its folder is a rank; which one, its init_process_group says.
    child = multiprocessing.parent_process() is not None
    joins = folder is not None and "RANK" not in os.environ and child and not _is_initialized()
    says = not quiet and (launches_ranks or (_is_alone() and not joins))
    return Watch(made, launches_ranks=launches_ranks, says=says, joins=joins)


def _folder_or_models(what: Any, folder: str | Path | None) -> tuple[str | Path | None, list[nn.Module]]:
    """What `watch` was given first: the folder, or the models."""
    if what is None:
        return folder, []
    if isinstance(what, str | Path):
        if folder is not None:
            raise WrongUse(
                "distdoctor.watch() was given two folders", way_out="Name one: distdoctor.watch(model, folder=...)."
            )
        return what, []
    torch = sys.modules.get("torch")
    models = [what] if not isinstance(what, list | tuple) else list(what)
    if torch is None or not models or not all(isinstance(model, torch.nn.Module) for model in models):
        raise WrongUse(
            f"distdoctor.watch() was given a {type(what).__name__}, which is neither a folder nor a model",
            way_out="Leave it out: models, optimizers and loaders are found by themselves.",
        )
    return folder, models


def _cells(paths: Iterable[str | Path]) -> dict[str, str]:
    """The cells of this notebook, where it is itself that recorded into one of `paths`."""
    written = _probe().destination() if _probe() is not None else None
    own = {os.path.realpath(path) for path in paths}
    return sys.modules["distdoctor.probe.notebook"].cell_texts() if written and os.path.realpath(written) in own else {}


def _members(group: ProcessGroup | None) -> tuple[int, ...]:
    """The ranks of a group, () without one."""
    if group is None:
        return ()
    import torch.distributed as dist

    return tuple(sorted(dist.get_process_group_ranks(group)))


def _is_alone() -> bool:
    """Whether this process is the whole job, as far as its environment and its process group say."""
    return "RANK" not in os.environ and "DISTDOCTOR_PROBE" not in os.environ and _world_size() <= 1


def _is_initialized() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _world_size() -> int:
    """The ranks of this job: those of its process group, or those that the environment promises."""
    if _is_initialized():
        return int(sys.modules["torch.distributed"].get_world_size())
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdecimal() else 1


def _probe() -> Any:
    """The probe's own module in this process, None where nobody has loaded it."""
    return sys.modules.get("distdoctor.probe.start")


def _refuse(folder: str | Path | None, *, late: bool) -> None:
    """`late`: what the process group did before is not asked for."""
    if _is_initialized() and not late:
        raise WrongUse(
            "the process group was made before distdoctor.watch()",
            way_out="Enter watch() before init_process_group, or name the model: watch(model) records all but collectives.",
        )
    size = _world_size()
    if size > 1 and folder is None:
        raise WrongUse(
            f"{size} ranks need one folder to be recorded into",
            way_out=f'Give all of them the same: distdoctor.watch({"model, folder=" if late else ""}"runs/one").',
        )


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """This rank is in a long phase of that name ("evaluation", "checkpoint"): a wait for it is no hang.

    Does nothing where no recording is made, so that it can stay in the code.
    """
    begins, ends = _probe().phase_marks() if _probe() is not None else (None, None)
    if begins is not None:
        begins(name)
    try:
        yield
    finally:
        if ends is not None:
            ends(name)
