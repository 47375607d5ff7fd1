import torch
from torch.utils.data import Dataset


class ToneCorpus(Dataset):
    """Each token is a tone of random duration in a 32-band spectrogram."""

    def __init__(self, size, vocab=20, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.bands = torch.randn(vocab + 1, 32, generator=g)
        self.transcripts = [torch.randint(1, vocab + 1, (int(n),), generator=g)
                            for n in torch.randint(3, 16, (size,), generator=g)]
        self.durations = [torch.randint(5, 10, (len(t),), generator=g) for t in self.transcripts]
        self.lengths = [int(d.sum()) for d in self.durations]
        self.seed = seed

    def __len__(self):
        return len(self.transcripts)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed + i)
        frames = self.bands[self.transcripts[i].repeat_interleave(self.durations[i])]
        return frames + 0.5 * torch.randn(frames.shape, generator=g), self.transcripts[i]


def spec_augment(x, max_bands=6):
    """Masks a band of frequencies, drawn anew for every utterance."""
    width = int(torch.randint(0, max_bands + 1, (1,)))
    start = int(torch.randint(0, x.size(1) - width + 1, (1,)))
    x = x.clone()
    x[:, start:start + width] = 0
    return x


def collate(batch):
    feats = [spec_augment(f) for f, _ in batch]
    labels = [t for _, t in batch]
    x = torch.nn.utils.rnn.pad_sequence(feats, batch_first=True)
    return (x, torch.tensor([len(f) for f in feats]), torch.cat(labels), torch.tensor([len(t) for t in labels]))
