import json
import os

import numpy as np


def write_lexicon(path, words=12000, seed=3):
    rng = np.random.default_rng(seed)
    entries = {f"w{i:05d}": {"id": int(i), "pieces": rng.integers(0, 500, size=4).tolist()} for i in range(words)}
    with open(path + ".tmp", "w") as f:
        json.dump(entries, f)
    os.replace(path + ".tmp", path)


class Lexicon:
    """Word to sub-word table with a prefix index; built once per process."""

    def __init__(self, path):
        with open(path) as f:
            raw = json.load(f)
        self.pieces = {w: e["pieces"] for w, e in raw.items()}
        self.by_prefix = {}
        for w in self.pieces:
            for n in (2, 3, 4):
                self.by_prefix.setdefault(w[:n], []).append(w)

    def encode(self, words):
        return [p for w in words for p in self.pieces[w]]
