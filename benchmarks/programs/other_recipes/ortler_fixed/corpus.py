import torch
from torch.utils.data import Dataset

VOCAB = 12


class Utterances(Dataset):
    """Feature sequences of 20..120 frames with short transcripts."""

    def __init__(self, n=240, feat=8, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(20, 121, (n,), generator=g).tolist()
        self.codes = torch.randn(VOCAB, feat, generator=g)
        self.seed = seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 7919 + i)
        n_tok = max(2, self.lengths[i] // 10)
        tokens = torch.randint(1, VOCAB, (n_tok,), generator=g)
        spread = tokens.repeat_interleave(self.lengths[i] // n_tok + 1)[: self.lengths[i]]
        feats = self.codes[spread] + 0.5 * torch.randn(self.lengths[i], self.codes.size(1), generator=g)
        return feats, tokens


def collate(batch):
    feats, tokens = zip(*batch)
    return (torch.nn.utils.rnn.pad_sequence(feats, batch_first=True),
            torch.tensor([len(f) for f in feats]),
            torch.cat(tokens), torch.tensor([len(t) for t in tokens]))
