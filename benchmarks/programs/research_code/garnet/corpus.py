import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


class ToneCorpus(Dataset):
    n_feats = 10
    vocab = 9

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        proto = torch.randn(self.vocab, self.n_feats, generator=torch.Generator().manual_seed(99))
        self.items = []
        for _ in range(n):
            k = int(torch.randint(3, 10, (1,), generator=g))
            tok = torch.randint(1, self.vocab, (k,), generator=g)
            frames = []
            for t in tok:
                d = int(torch.randint(4, 9, (1,), generator=g))
                frames.append(proto[t] + 0.4 * torch.randn(d, self.n_feats, generator=g))
                frames.append(0.2 * torch.randn(2, self.n_feats, generator=g))
            self.items.append((torch.cat(frames), tok))
        self.lengths = [len(x) for x, _ in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    x = pad_sequence([b[0] for b in batch], batch_first=True)
    tok = pad_sequence([b[1] for b in batch], batch_first=True)
    return {"x": x, "x_len": torch.tensor([len(b[0]) for b in batch]), "tok": tok,
            "tok_len": torch.tensor([len(b[1]) for b in batch])}
