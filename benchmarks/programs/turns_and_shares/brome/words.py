"""Generated short articles and the word table made from them."""
import random
from collections import Counter

TOPICS = ["harbour", "kitchen", "forest", "foundry"]
SYLLABLES = ["ka", "lo", "mi", "ret", "sun", "vor", "pel", "ad", "quo", "zin", "bar", "tes"]


def lexicon(seed=0, size=900):
    rng = random.Random(seed)
    words = set()
    while len(words) < size:
        words.add("".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 4))))
    words = sorted(words)
    rng.shuffle(words)
    common, rest = words[:300], words[300:]
    share = len(rest) // len(TOPICS)
    return common, [rest[i * share:(i + 1) * share] for i in range(len(TOPICS))]


def articles(count, seed, length=24):
    common, topical = lexicon()
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        topic = rng.randrange(len(TOPICS))
        text = []
        for _ in range(length):
            pool = topical[topic] if rng.random() < 0.3 else common
            text.append(pool[min(int(rng.expovariate(0.02)), len(pool) - 1)])
        rows.append((text, topic))
    return rows


class WordTable:
    PAD, UNKNOWN = 0, 1

    def __init__(self, words):
        self.words = ["<pad>", "<unk>"] + list(words)
        self.index = {w: i for i, w in enumerate(self.words)}

    @classmethod
    def from_counts(cls, counts, size):
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(w for w, _ in ranked[:size - 2])

    def encode(self, text):
        return [self.index.get(w, self.UNKNOWN) for w in text]

    def coverage(self, rows):
        known = sum(w in self.index for text, _ in rows for w in text)
        return known / sum(len(text) for text, _ in rows)


def count_words(rows):
    counts = Counter()
    for text, _ in rows:
        counts.update(text)
    return counts
