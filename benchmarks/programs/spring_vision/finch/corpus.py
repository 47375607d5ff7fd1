import math
import os

import torch
from filelock import FileLock
from torch.utils.data import Dataset

VOCAB = 12


def utterance(i, sr=4000):
    """A sequence of tones; every tone is a token."""
    g = torch.Generator().manual_seed(50_000 + i)
    n = int(torch.randint(3, 8, (1,), generator=g))
    tokens = torch.randint(1, VOCAB, (n,), generator=g)
    parts = []
    for t in tokens.tolist():
        dur = int(sr * (0.08 + 0.06 * torch.rand(1, generator=g).item()))
        ph = torch.arange(dur) / sr
        parts.append(torch.sin(2 * math.pi * (200 + 120 * t) * ph) * torch.hann_window(dur))
        parts.append(torch.zeros(dur // 4))
    wav = torch.cat(parts)
    return wav + 0.05 * torch.randn(len(wav), generator=g), tokens


def fbank(wav, n_fft=256, hop=80, n_mels=24):
    spec = torch.stft(wav, n_fft, hop, window=torch.hann_window(n_fft), return_complex=True).abs()
    bins = torch.linspace(0, spec.size(0) - 1, n_mels + 1).long()
    return torch.stack([spec[bins[m]:bins[m + 1] + 1].mean(0) for m in range(n_mels)], 1).clamp(min=1e-4).log()


class FeatureCache:
    """Features are computed once and kept on disk for later runs with the same settings."""

    def __init__(self, root, n_mels):
        self.root, self.n_mels = root, n_mels
        os.makedirs(root, exist_ok=True)

    def load(self, split, ids, part):
        path = os.path.join(self.root, f"{split}-{part}-fbank{self.n_mels}.pt")
        with FileLock(path + ".lock"):
            if not os.path.exists(path):
                rows = []
                for i in ids:
                    wav, tokens = utterance(i)
                    rows.append((i, fbank(wav, n_mels=self.n_mels), tokens))
                torch.save(rows, path)
            return torch.load(path)


class FeatureDataset(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.rows[k]


def collate(rows):
    ids, feats, tokens = zip(*rows)
    flen = torch.tensor([len(f) for f in feats])
    tlen = torch.tensor([len(t) for t in tokens])
    x = torch.nn.utils.rnn.pad_sequence(feats, batch_first=True)
    y = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return torch.tensor(ids), x, flen, y, tlen
