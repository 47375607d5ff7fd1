"""Name the rank's own device before anything else touches CUDA."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDY = Remedy(
    slug="stay-on-the-own-device",
    what="Name the rank's own device before anything else touches CUDA, and load checkpoints onto it or onto the CPU.",
    how="""torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # first of all
state = torch.load(path, map_location="cpu")""",
    effect="some hundred MiB for each context that is not made, on the device that everybody else uses as well",
    safety="changes no result",
    source="torch.cuda.set_device; torch.load, map_location",
)
