from collections import Counter


class Vocabulary:
    """Frequent words get an id of their own, everything else shares the last one."""

    def __init__(self, index):
        self.index = index

    @classmethod
    def build(cls, documents, max_size):
        counts = Counter(w for doc in documents for w in doc)
        ordered = sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))
        return cls({w: i for i, (w, _) in enumerate(ordered[:max_size])})

    def __len__(self):
        return len(self.index)

    def encode(self, words):
        rest = len(self.index)
        return [self.index.get(w, rest) for w in words]
