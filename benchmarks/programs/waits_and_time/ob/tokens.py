import random
from collections import Counter

NAMES = "mira olek tadas nina pavel sora juno karim".split()
VERBS = "finds loses paints repairs carries follows watches hides".split()
THINGS = "lantern kite bridge basket radio compass clock puppet letter ladder".split()
PLACES = "harbour orchard attic market station meadow cellar lighthouse".split()


def write_stories(n, seed):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        who = rng.choice(NAMES)
        for _ in range(rng.randint(2, 5)):
            out.append(f"{who} {rng.choice(VERBS)} the {rng.choice(THINGS)} near the {rng.choice(PLACES)} .")
    return " ".join(out)


def join_pair(ids, pair, new):
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and ids[i] == pair[0] and ids[i + 1] == pair[1]:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


class PairTokenizer:
    """Byte-pair merges in plain python."""

    def __init__(self, base, merges):
        self.base, self.merges = base, merges

    @property
    def size(self):
        return len(self.base) + len(self.merges)

    @classmethod
    def learn(cls, text, merges):
        base = {c: i for i, c in enumerate(sorted(set(text)))}
        ids, learned = [base[c] for c in text], []
        for _ in range(merges):
            pair = Counter(zip(ids, ids[1:])).most_common(1)[0][0]
            learned.append(pair)
            ids = join_pair(ids, pair, len(base) + len(learned) - 1)
        return cls(base, learned)

    def encode(self, text):
        ids = [self.base[c] for c in text]
        for k, pair in enumerate(self.merges):
            ids = join_pair(ids, pair, len(self.base) + k)
        return ids
