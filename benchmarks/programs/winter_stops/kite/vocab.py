"""Byte-pair vocabulary, built once by the first worker and handed to the others through the store."""
import json
import random
from collections import Counter
from datetime import timedelta

import torch.distributed as dist


def corpus(words, seed):
    rng = random.Random(seed)
    stems = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 11))) for _ in range(9000)]
    return [stems[min(int(rng.expovariate(1 / 900)), len(stems) - 1)] for _ in range(words)]


def learn_merges(words, count):
    table = {tuple(w): n for w, n in Counter(words).items()}
    merges = []
    for _ in range(count):
        pairs = Counter()
        for symbols, n in table.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += n
        if not pairs:
            break
        best = max(pairs, key=lambda k: (pairs[k], k))
        merges.append(best)
        fused = {}
        for symbols, n in table.items():
            out, i = [], 0
            while i < len(symbols):
                if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == best:
                    out.append(symbols[i] + symbols[i + 1])
                    i += 2
                else:
                    out.append(symbols[i])
                    i += 1
            fused[tuple(out)] = n
        table = fused
    return merges


class VocabularyExchange:
    def __init__(self, store, patience):
        self.store = store
        self.patience = timedelta(seconds=patience)

    def build(self, words, merges):
        key = f"vocab/{merges}"
        if dist.get_rank() == 0:
            learnt = learn_merges(words, merges)
            self.store.set(key, json.dumps(learnt))
        else:
            self.store.wait([key], self.patience)
        return [tuple(m) for m in json.loads(self.store.get(key))]


class Tokenizer:
    def __init__(self, merges):
        self.rank = {m: i for i, m in enumerate(merges)}
        self.ids = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")}
        for a, b in merges:
            self.ids.setdefault(a + b, len(self.ids))
        self.cache = {}

    def encode(self, word):
        if word not in self.cache:
            parts = list(word)
            while len(parts) > 1:
                ranked = [(self.rank.get(p, 1 << 30), i) for i, p in enumerate(zip(parts, parts[1:]))]
                best, i = min(ranked)
                if best == 1 << 30:
                    break
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            self.cache[word] = [self.ids[s] for s in parts]
        return self.cache[word]
