"""Reviews as JSON lines in a handful of files."""
import json
import os
import random

import torch
from torch.utils.data import IterableDataset

GOOD = "fresh kind warm tidy quick lovely bright calm".split()
BAD = "stale rude cold dirty slow dull noisy damp".split()
OTHER = "the room staff food lake view boat stairs bed water morning tea".split()
VOCAB = {w: i + 1 for i, w in enumerate(GOOD + BAD + OTHER)}


def write_files(folder, files, lines, seed):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(seed)
    for f in range(files):
        with open(os.path.join(folder, f"part-{f:02d}.jsonl"), "w") as handle:
            for _ in range(lines):
                stars = rng.randrange(2)
                words = rng.choices(OTHER, k=9) + rng.choices(GOOD if stars else BAD, k=2) + rng.choices(BAD if stars else GOOD, k=1)
                rng.shuffle(words)
                handle.write(json.dumps({"text": " ".join(words), "stars": stars}) + "\n")


class ReviewFiles(IterableDataset):
    def __init__(self, folder, rank, world, seed):
        self.files = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".jsonl"))
        self.rank = rank
        self.world = world
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rng = random.Random(1000 * self.seed + self.epoch)
        files = list(self.files)
        rng.shuffle(files)
        for path in files[self.rank::self.world]:
            with open(path) as handle:
                rows = [json.loads(line) for line in handle]
            rng.shuffle(rows)
            for row in rows:
                ids = torch.tensor([VOCAB[w] for w in row["text"].split()])
                yield ids, row["stars"]
