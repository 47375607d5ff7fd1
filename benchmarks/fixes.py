"""Whether the patches that findings show end the illness: each job is run with `--try-fix`, and counted by code.

python benchmarks/fixes.py                                  # the examples
python benchmarks/fixes.py --drills missing-set-epoch ...   # drills of the reference training, by slug
python benchmarks/fixes.py --drills all --seconds 1500      # all of them, in pieces
python benchmarks/fixes.py a/train.py b/ ...                # scripts, or folders of them (with a manifest.json: ranks, arguments)

Every script is copied into a temporary folder and run there. `shown`: jobs with a patch; `verified`: the second run was not ill;
`not`: it was, or failed; `undecided`: it did not come far enough. Results are added to --results, by job, so that a run that was
interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distdoctor.plugins import load

HERE = Path(__file__).parent
LIMIT = 420  # seconds for both runs of a job


@dataclass(frozen=True)
class Case:
    """One job. `arguments`: of `distdoctor run`, the script last; `brings`: what has to lie beside it."""

    name: str
    arguments: tuple[str, ...]
    brings: tuple[Path, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


def main() -> None:
    asked = _arguments()
    cases = [*_drills(asked.drills), *(case for path in asked.paths for case in _scripts(Path(path)))]
    if not cases:
        cases = [case for case in _scripts(HERE.parent / "examples") if "healthy" not in case.name]
    results: dict[str, Any] = json.loads(asked.results.read_text()) if asked.results.exists() else {}
    began = time.monotonic()
    for case in cases:
        if "findings" not in results.get(case.name, {}) and time.monotonic() - began < asked.seconds:
            results[case.name] = _tried(case)
            asked.results.write_text(json.dumps(results, indent=1))
            print(case.name, results[case.name], flush=True)
    print(table(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--drills", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further job after so long")
    parser.add_argument("--results", type=Path, default=Path("fixes.json"))
    return parser.parse_args()


def _drills(slugs: list[str]) -> Iterator[Case]:
    known = {drill.slug: drill for drill in load().drills.values()}
    if unknown := set(slugs) - {"all", *known}:
        sys.exit(f"fixes.py: there is no drill {', '.join(sorted(unknown))}; `distdoctor list` names them all")
    for slug in known if slugs == ["all"] else slugs:
        strategy = (known[slug].strategies or ("ddp",))[0]
        ranks = str(max(2, known[slug].needs_ranks))
        yield Case(slug, ("--strategy", strategy, "--nproc", ranks, "--fire-drill", slug))


def _scripts(path: Path) -> Iterator[Case]:
    folder = path if path.is_dir() else path.parent
    manifest = folder / "manifest.json"
    known = {one["file"]: one for one in json.loads(manifest.read_text())} if manifest.exists() else {}
    for script in sorted(path.glob("*.py")) if path.is_dir() else [path]:
        about = known.get(script.name, {})
        if about.get("kind", "sick") != "sick" or about.get("launcher", "torchrun") != "torchrun":
            continue
        more = tuple(folder / name for name in about.get("files", []))
        arguments = ("--nproc", str(about.get("nproc", 2)), script.name, *map(str, about.get("args", [])))
        yield Case(script.stem, arguments, (script, *more), dict(about.get("env", {})))


def _tried(case: Case) -> dict[str, Any]:
    """What the report of the job says about its first patch."""
    with tempfile.TemporaryDirectory(prefix="fixes-", ignore_cleanup_errors=True) as place:
        for path in case.brings:
            shutil.copy(path, place)
        words = [sys.executable, "-m", "distdoctor", "run", "--try-fix", "--hang-after", "60", "-o", "report.json"]
        try:
            subprocess.run(
                [*words, *case.arguments],
                cwd=place,
                timeout=LIMIT,
                env={**os.environ, "OMP_NUM_THREADS": "1", **case.env},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            report = json.loads((Path(place) / "report.json").read_text())
        except (subprocess.TimeoutExpired, OSError, ValueError) as trouble:
            return {"trouble": type(trouble).__name__}
    tried = report.get("tried_fix") or {}
    shown = [one["code"] for one in report["findings"] if any(remedy["patch"] for remedy in one["remedies"])]
    return {
        "findings": [one["code"] for one in report["findings"]],
        "shown": shown,
        "code": tried.get("code", ""),
        "outcome": tried.get("outcome", ""),
        "words": tried.get("words", ""),
        "instead": [one["code"] for one in tried.get("findings", [])],
    }


def table(results: dict[str, Any]) -> str:
    """One row for each job with a patch and the counts by code, as Markdown."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in results.values():
        if one.get("shown"):
            for code in (one["code"] or one["shown"][0], "all"):
                counts[code]["shown"] += 1
                counts[code][one["outcome"]] += 1
    rows = ["| code | shown | verified | not | undecided |", "|---|---:|---:|---:|---:|"]
    for code, row in sorted(counts.items()):
        undecided = row["undecided"] + row["not tried"]
        rows.append(f"| {code} | {row['shown']} | {row['verified']} | {row['not verified']} | {undecided} |")
    jobs = sum("trouble" not in one for one in results.values())
    shown = {name: one for name, one in sorted(results.items()) if one.get("shown")}
    each = [f"| {one['code'] or one['shown'][0]} | {name} | {one['outcome']} |" for name, one in shown.items()]
    words = [
        f"{name} ({', '.join(one['findings']) or '-'})"
        for name, one in sorted(results.items())
        if "findings" in one and not one["shown"]
    ]
    return "\n".join(
        [
            "| code | job | with the patch |",
            "|---|---|---|",
            *each,
            "",
            f"No patch: {', '.join(words)}",
            "",
            f"{jobs} jobs, {counts['all']['shown']} of them with a patch",
            "",
            *rows,
        ]
    )


if __name__ == "__main__":
    main()
