"""Which line of the user's own source is at work: the first frame outward that is neither torch's nor a library's."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Container, Iterator
from types import FrameType

import torch

from distdoctor.probe.interruptions import suppressed
from distdoctor.probe.notebook import cell_of
from distdoctor.recording.trace.layout import site_text

_HOUSE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Code of the reference workloads counts as the user's, although it is installed like a library.
_OUR_WORKLOADS = (
    os.path.join(_HOUSE, "workloads") + os.sep,
    f"{os.sep}distdoctor_strategies{os.sep}",
    f"{os.sep}distdoctor_drills{os.sep}",
)
_PATHS = sysconfig.get_paths()
_LIBRARY_FOLDERS = tuple(
    {os.path.dirname(os.path.abspath(torch.__file__)) + os.sep, _HOUSE + os.sep}
    | {_PATHS[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.realpath(_PATHS[name]) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def _installed_elsewhere() -> Iterator[str]:
    """Folders of `pip install --target`, put on the path by hand: what pip installs leaves its dist-info beside it.

    Not where the program itself lies: there a user's own files may be among what was installed.
    """
    own = {"", os.getcwd(), sys.path[0] if sys.path else ""}
    for folder in sys.path:
        if folder not in own and not folder.startswith(tuple(_LIBRARY_FOLDERS)) and os.path.isdir(folder):
            with suppressed(OSError):
                if any(name.endswith(".dist-info") for name in os.listdir(folder)):
                    yield os.path.join(os.path.abspath(folder), "")


_LIBRARY_FOLDERS += tuple(_installed_elsewhere())
_LIBRARY_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# Keyed by names, not by code objects: hashing a code object walks its constants, and these dictionaries must keep nothing alive.
_is_users: dict[str, bool] = {}
_site_texts: dict[tuple[str, int, str], str] = {}
_KEPT = 10_000  # entries; a program that makes functions without end must not fill the rank's memory
_WALK = 96  # frames; deeper than any training loop seen, and a bound on the cost


def _belongs_to_user(path: str) -> bool:
    if any(part in path for part in _OUR_WORKLOADS):
        return True
    if path.startswith("<ipython-input-"):
        return True
    if path.startswith("<"):  # <string>, <stdin>: somebody typed it; <frozen ...>, <eval_with_key>: nobody did
        return path in ("<stdin>", "<string>")
    whole = os.path.abspath(path)
    return not (whole.startswith(_LIBRARY_FOLDERS) or any(part in whole for part in _LIBRARY_PARTS))


def is_users(frame: FrameType) -> bool:
    """Whether the frame runs the user's own source."""
    path = frame.f_code.co_filename
    known = _is_users.get(path)
    return belongs_to_user(path) if known is None else known


def belongs_to_user(path: str) -> bool:
    """Whether a source file is the user's own."""
    known = _is_users.get(path)
    if known is None:
        known = _belongs_to_user(path)
        if len(_is_users) < _KEPT:
            _is_users[path] = known
    return known


def is_users_class(kind: type) -> bool:
    """Whether a class is written in the user's own source."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return not isinstance(path, str) or belongs_to_user(path)


def forward_of(kind: type) -> str:
    """Where a class of the user's begins its forward, "" for other classes: what is mentioned is read with the recording."""
    code = getattr(getattr(kind, "forward", None), "__code__", None)
    if code is None or not belongs_to_user(code.co_filename):
        return ""
    return site_at(code.co_filename, code.co_firstlineno, code.co_name)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's own source at or outside `frame`, None when there is none."""
    for _ in range(_WALK):
        if frame is None or is_users(frame):
            return frame
        frame = frame.f_back
    return None


def site_of(frame: FrameType) -> str:
    """`path\\0line\\0function` of a frame."""
    code = frame.f_code
    key = (code.co_filename, frame.f_lineno, code.co_name)
    text = _site_texts.get(key)
    if text is None:
        text = site_at(*key)
        if len(_site_texts) < _KEPT and not cell_of(key[0]):  # a cell that is run again has another number
            _site_texts[key] = text
    return text


def site_at(path: str, line: int, function: str) -> str:
    """`path\\0line\\0function` of a line, by the names that a code object has; of a cell, the name that its notebook shows."""
    cell = cell_of(path)
    return site_text(cell or (path if path.startswith("<") else os.path.abspath(path)), line, function)


def user_site() -> str:
    """The user's line that led here, "" when no frame is the user's."""
    frame = user_frame(sys._getframe(1))
    return site_of(frame) if frame is not None else ""


def raised_at(error: BaseException) -> str:
    """The user's line at which an exception passed last, "" when it never passed one."""
    site, trace = "", error.__traceback__
    while trace is not None:
        if is_users(trace.tb_frame):
            code = trace.tb_frame.f_code
            site = site_at(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return site


def calling_site(modules: Container[int]) -> str:
    """The user's line that called into a model: the innermost one outside every `forward` that is running and every method of
    these modules, which are given by their ids; "" when there is none."""
    frame: FrameType | None = sys._getframe(1)
    outside, walked = frame, frame
    for _ in range(_WALK):
        if walked is None:
            break
        if walked.f_code.co_name == "forward" or id(walked.f_locals.get("self")) in modules:
            outside = walked.f_back
        walked = walked.f_back
    frame = user_frame(outside)
    return site_of(frame) if frame is not None else user_site()
