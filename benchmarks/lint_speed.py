"""How fast lint reads: thousand lines of source a minute, on one core, files already in memory.

Without arguments it reads the sources of torch.distributed and Lightning as they are installed. The figure counts every line of
every file, those that a word search sets aside unparsed included; `parsed` counts only the files that were parsed.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

from distdoctor.lint.examine import examine
from distdoctor.lint.rules import all_rules

ASKED = 200  # kLOC a minute


def sources(folder: Path) -> dict[str, str]:
    """The Python files of a folder, path -> text."""
    return {str(p): p.read_text("utf-8", "replace") for p in sorted(folder.rglob("*.py")) if p.is_file()}


def measure(folder: Path) -> float:
    """Print one row; return kLOC a minute."""
    texts = sources(folder)
    lines = sum(text.count("\n") for text in texts.values())
    parsed = sum(t.count("\n") for t in texts.values() if "torch" in t or "accelerat" in t)
    started = time.process_time()
    seen = examine(texts)
    seconds = time.process_time() - started
    rate = lines / 1000 / seconds * 60
    print(
        f"{folder.name:<24} {len(texts):>6} files {lines / 1000:>8.1f} kLOC {seconds:>7.2f} s {rate:>7.0f} kLOC/min "
        f"(parsed: {parsed / 1000 / seconds * 60:.0f}), {len(seen.findings)} findings"
    )
    assert not seen.failed, seen.failed
    return rate


def _installed(package: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    assert spec.origin is not None, package
    return Path(spec.origin).parent


def main() -> None:
    folders = [Path(one) for one in sys.argv[1:]] or [_installed("torch") / "distributed", _installed("lightning")]
    all_rules()
    rates = [measure(folder) for folder in folders if folder.is_dir()]
    sys.exit(0 if rates and min(rates) > ASKED else 1)


if __name__ == "__main__":
    main()
