"""The patches of a report, for `git apply` in the folder where the job was started."""

from __future__ import annotations

from distdoctor.diagnosis.diagnosis import Diagnosis


def render(diagnosis: Diagnosis) -> str:
    """The patch of each finding that has one, the root cause first; of a file that several want to change, only the first."""
    found, changed, folder = [], set[str](), None
    for finding in diagnosis.findings:
        patch = next((cure.patch for cure in finding.prescriptions if cure.patch is not None), None)
        if patch is None or folder not in (None, patch.folder):
            continue
        paths = {path for path, _ in patch.digests}
        if not paths & changed:
            found.append(patch.text)
            changed |= paths
            folder = patch.folder
    return "".join(found)
