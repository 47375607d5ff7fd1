"""Writes a token file: paragraphs of a made-up grammar, one byte per letter."""
import os
import random

import numpy as np

SUBJECTS = "ferry pilot miller baker heron otter".split()
VERBS = "sees meets passes greets leaves".split()
PLACES = "bridge lock island harbour ford weir".split()


def prepare(path, sentences, seed):
    rng = random.Random(seed)
    text = []
    for _ in range(sentences):
        text.append(f"the {rng.choice(SUBJECTS)} {rng.choice(VERBS)} the {rng.choice(SUBJECTS)} at the {rng.choice(PLACES)}. ")
    blob = np.frombuffer("".join(text).encode(), dtype=np.uint8)
    blob.tofile(path + ".part")
    os.replace(path + ".part", path)
