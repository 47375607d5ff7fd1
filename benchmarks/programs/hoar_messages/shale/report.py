import csv
import os
import tempfile


class Report:
    """One csv per evaluation; old ones are rotated into history/."""

    def __init__(self, rank, keep=2):
        self.rank, self.keep, self.n = rank, keep, 0
        self.root = tempfile.mkdtemp(prefix="report-") if rank == 0 else None

    def write(self, rows):
        if self.root is None:
            return
        path = os.path.join(self.root, f"eval_{self.n:03d}.csv")
        with open(path, "w", newline="") as f:
            csv.writer(f).writerows(rows)
        self.n += 1
        files = sorted(f for f in os.listdir(self.root) if f.endswith(".csv"))
        for old in files[:-self.keep]:
            os.rename(os.path.join(self.root, old), os.path.join(self.root, "history", old))
