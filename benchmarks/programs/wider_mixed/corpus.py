import hashlib
import json
import pathlib
import time

WORDS = "the a of to and in it is was for on that with as be at by this from or".split()


def documents(n):
    for i in range(n):
        h = hashlib.sha1(str(i).encode()).digest()
        yield [WORDS[b % len(WORDS)] for b in h]


def tokenize(path: pathlib.Path, n=600, seconds=14.0):
    vocab = {w: i for i, w in enumerate(WORDS)}
    t0 = time.monotonic()
    rows = []
    for k, doc in enumerate(documents(n)):
        ids = [vocab[w] for w in doc]
        while time.monotonic() - t0 < seconds * (k + 1) / n:
            hashlib.sha256(bytes(ids) * 400).hexdigest()
            time.sleep(0.002)
        rows.append(ids)
    tmp = path.with_suffix(".tmp")
    tmp.write_text(json.dumps(rows))
    tmp.rename(path)
