import torch
from torch.utils.data import Dataset


def load_records(n_patients=60, visits=8):
    gen = torch.Generator().manual_seed(2024)
    out = []
    for p in range(n_patients):
        centre = torch.randn(10, generator=gen)
        for v in range(visits):
            x = centre + 0.3 * torch.randn(10, generator=gen)
            out.append({"key": p * visits + v, "patient": f"PT-{p:05d}", "x": x, "y": (centre[:3].sum() > 0).float()})
    return out


class VisitDataset(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        r = self.records[i]
        return r["x"], r["y"], r["key"]
