import os
import re
import time

import torch
import torch.distributed as dist

WORDS = "red green blue left right up down north south east west one two three four five six seven".split()


def corpus(lines):
    g = torch.Generator().manual_seed(0)
    for _ in range(lines):
        n = int(torch.randint(12, 20, (1,), generator=g))
        start = int(torch.randint(0, len(WORDS), (1,), generator=g))
        yield " ".join(WORDS[(start + i * (1 + n % 3)) % len(WORDS)] for i in range(n))


def learn_merges(text, count):
    seqs = [list(w) for w in re.findall(r"\S+|\s", text)]
    merges = []
    for _ in range(count):
        pairs = {}
        for s in seqs:
            for a, b in zip(s, s[1:]):
                pairs[a, b] = pairs.get((a, b), 0) + 1
        if not pairs:
            break
        best = max(sorted(pairs), key=pairs.get)
        merges.append(best)
        for s in seqs:
            i = 0
            while i < len(s) - 1:
                if (s[i], s[i + 1]) == best:
                    s[i:i + 2] = ["".join(best)]
                else:
                    i += 1
    return merges, seqs


def build_cache(path, lines, merges):
    began = time.time()
    text = "\n".join(corpus(lines))
    _, seqs = learn_merges(text, merges)
    vocab = {t: i for i, t in enumerate(sorted({t for s in seqs for t in s}))}
    ids = torch.tensor([vocab[t] for s in seqs for t in s])
    torch.save({"ids": ids, "vocab": len(vocab)}, path + ".tmp")
    os.replace(path + ".tmp", path)
    print(f"tokenizer and cache ready in {time.time() - began:.1f}s, {len(ids)} tokens", flush=True)


def load(path, lines, merges):
    if dist.get_rank() == 0:
        build_cache(path, lines, merges)
    dist.barrier()
    return torch.load(path)
