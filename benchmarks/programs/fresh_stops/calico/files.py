"""A folder of text files as a crawler leaves it: the lines in the wanted languages are dealt out."""
import json
import os
import random
import tempfile
import zlib

WORDS = "ka lo mi tu ne sa ri po ve da".split()
LANGS = ("fi", "et", "hu")


def make_folder(seed, n=18):
    root = tempfile.mkdtemp(prefix="crawl-")
    rng = random.Random(seed)
    for i in range(n):
        lang = LANGS[zlib.crc32(f"site{i:03d}".encode()) % 3]
        with open(os.path.join(root, f"site{i:03d}.jsonl"), "w") as f:
            for _ in range(40):
                words = rng.choices(WORDS, weights=[1 + (LANGS.index(lang) + k) % 5 for k in range(len(WORDS))], k=12)
                f.write(json.dumps({"lang": lang, "text": " ".join(words)}) + "\n")
    return root


def read(root, rank, world, langs):
    lines = []
    for name in sorted(os.listdir(root)):
        with open(os.path.join(root, name)) as f:
            for raw in f:
                rec = json.loads(raw)
                if rec["lang"] in langs:
                    lines.append(rec["text"])
    return lines[rank::world]
