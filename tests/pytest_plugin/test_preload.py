"""Which modules of a rank are imported once for all later ranks: those of libraries, wherever these are installed."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from distdoctor.pytest_plugin.preload import loaded_since


@pytest.mark.parametrize(
    ("origin", "once"),
    [
        ("/opt/pytorch/lib/python3.11/site-packages/torch/new_part.py", True),
        ("/usr/lib/python3/dist-packages/torch/new_part.py", True),
        ("/home/me/job/torch_helpers/new_part.py", False),
        ("built-in", False),
    ],
)
def test_a_library_of_another_site_is_one_too(monkeypatch: pytest.MonkeyPatch, origin: str, once: bool) -> None:
    before = {*sys.modules}
    module = ModuleType("torch.new_part")
    module.__spec__ = ModuleSpec("torch.new_part", None, origin=origin)
    monkeypatch.setitem(sys.modules, "torch.new_part", module)

    assert ("torch.new_part" in loaded_since(before)) is once
