"""What SECURITY.md promises about our own source: nothing that somebody sends us is ever run."""

from __future__ import annotations

import ast
import re
import tomllib
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*(ROOT / "distdoctor").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")])
# Where such a call is, and why it cannot be given somebody else's bytes.
ALLOWED = {
    ("distdoctor/workloads/baseline.py", "torch.load"): "weights_only, of a file that this run wrote",
    ("distdoctor/workloads/checkpoint.py", "torch.load"): "weights_only, of the reference training's own checkpoint",
    **{
        (
            f"plugins/distdoctor_drills/checkpoint/{drill}.py",
            "torch.load",
        ): "weights_only, of a file that the drill wrote"
        for drill in ("load_without_map_location", "rank_zero_barrier_missing", "saved_wrapper")
    },
    ("distdoctor/probe/writer.py", "exec"): "source made of our own layout's field names",
}
RUNS_CODE = {
    "eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "marshal.load", "marshal.loads",
    "shelve.open", "yaml.load", "os.system", "os.popen", "subprocess.getoutput", "numpy.load", "np.load", "joblib.load",
}  # fmt: skip
# One of these names stands in every source that has such a call, or starts a shell; others need no parsing.
NAMED = re.compile(rf"\b({'|'.join(sorted({'shell', *(name.rpartition('.')[2] for name in RUNS_CODE)}))})\b")


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text("utf-8"))
    return [(dotted(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def dotted(function: ast.expr) -> str:
    """The name that is called: `torch.load` of torch.load(...); empty in front of what is no name."""
    if isinstance(function, ast.Attribute):
        return f"{dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_of_ours_runs_what_it_reads(path: Path) -> None:
    where = str(path.relative_to(ROOT))
    if not NAMED.search(unicodedata.normalize("NFKC", path.read_text("utf-8"))):  # as Python reads names
        return

    for name, call in calls(path):
        if name in RUNS_CODE and (where, name) not in ALLOWED:
            safe = name in ("np.load", "numpy.load") and not any(k.arg == "allow_pickle" for k in call.keywords)
            assert safe, f"{where}:{call.lineno} calls {name}"
        if name == "torch.load":
            assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in call.keywords)
        shell = [k for k in call.keywords if k.arg == "shell" and ast.unparse(k.value) != "False"]
        assert not shell, f"{where}:{call.lineno} starts a shell"


# What reads files of the kernel's, or looks at what it has opened itself.
OPENS = {"cores.py", "files.py", "flight/reading.py", "trace/run_folder.py", "trace/process_key.py"}


def test_a_recording_is_read_by_what_opens_regular_files_only() -> None:
    """A FIFO would stop the reader, a device fill it: files.py has `opened`, `head_of` and `read_bytes`."""
    room = ROOT / "distdoctor" / "recording"
    found = [
        f"{path.relative_to(room)}:{call.lineno} {name}"
        for path in sorted(room.rglob("*.py"))
        if str(path.relative_to(room)) not in OPENS
        for name, call in calls(path)
        if name in ("open", "os.open") or name.endswith((".open", ".read_bytes", ".read_text"))
    ]

    assert found == []


@pytest.mark.parametrize(("where", "name"), ALLOWED)
def test_no_exception_outlives_its_reason(where: str, name: str) -> None:
    assert name in [found for found, _ in calls(ROOT / where)]


def test_each_package_that_is_installed_with_it_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = {re.split(r"[<>=!~;\[ ]", one)[0] for one in project["dependencies"]}
    text = (ROOT / "SECURITY.md").read_text("utf-8").partition("## What is installed with it")[2]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")][2:]

    assert {name.strip() for row in rows for name in row.split(",")} == installed
    assert all(f"`{extra}`" in text for extra in project["optional-dependencies"])
