"""Find out whether memory or device of a host corrupt data."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

CHECK_HARDWARE = Remedy(
    slug="check-hardware",
    what="Test memory and device of that rank's host, and take it out of service when it happens again.",
    how="""nvidia-smi -q -d ECC          # corrected and uncorrected errors
dcgmi diag -r 3               # NVIDIA's own tests of device, memory and links
journalctl -k | grep -i -E 'mce|edac|xid'""",
    effect="A second single-bit difference on the same host is no accident.",
    safety="the tests need an idle device",
    source="Dixit et al., Silent Data Corruptions at Scale, 2021",
)
