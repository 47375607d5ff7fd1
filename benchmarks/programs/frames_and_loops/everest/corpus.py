import functools
import math
import re

import torch
from torch.utils.data import Dataset

CACHED_DOCS = 256


def document_words(i: int, total: int, base: int) -> int:
    if i < total // 2:
        return int(base * (1.0 + 0.35 * math.sin(i / total * math.pi)))
    return int(base * 0.95)


def document(i: int, words: int) -> str:
    g = torch.Generator().manual_seed(7000 + i)
    ids = torch.randint(0, 500, (words,), generator=g).tolist()
    return " ".join(f"w{k:03d}{'ing' if k % 3 else 'ed'}," for k in ids)


class Tokenizer:
    """A toy byte-pair style tokenizer: greedy merges from a fixed table."""

    def __init__(self, vocab: int = 600):
        self.vocab = vocab
        self.split = re.compile(r"\w+|[^\w\s]")
        self.merges = [("i", "n"), ("in", "g"), ("e", "d"), ("w", "0"), ("w", "1"), ("w", "2"), ("w", "3"), ("w", "4")]

    def pieces(self, word: str):
        parts = list(word)
        for a, b in self.merges:
            i = 0
            while i < len(parts) - 1:
                if parts[i] == a and parts[i + 1] == b:
                    parts[i : i + 2] = [a + b]
                else:
                    i += 1
        return parts

    def encode(self, text: str):
        out = []
        for word in self.split.findall(text):
            for piece in self.pieces(word):
                code = 0
                for ch in piece:
                    code = (code * 131 + ord(ch)) % self.vocab
                out.append(code)
        return out


class Documents(Dataset):
    """Documents of one process; encoded documents are kept for the next pass."""

    def __init__(self, ids, args):
        self.ids, self.args, self.window = list(ids), args, args.window
        self.tok = Tokenizer()
        self.encoded = functools.lru_cache(maxsize=CACHED_DOCS)(self._encode)

    def _encode(self, doc: int) -> torch.Tensor:
        return torch.tensor(self.tok.encode(document(doc, document_words(doc, self.args.documents, self.args.words))))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        t = self.encoded(self.ids[i])
        return t[: self.window], t[1 : self.window + 1]
