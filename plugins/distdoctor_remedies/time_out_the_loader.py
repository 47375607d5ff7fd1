"""Give the DataLoader a timeout, and bound what its workers wait for."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

TIME_OUT_THE_LOADER = Remedy(
    slug="time-out-the-loader",
    what="Give the DataLoader a timeout, and bound what its workers wait for.",
    how="DataLoader(dataset, num_workers=4, timeout=120)",
    effect="the rank fails after that time with an error that names the loader, instead of holding up every other rank",
    safety="changes no result",
    source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
)
