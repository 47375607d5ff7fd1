import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset


class Utterances(Dataset):
    def __init__(self, n, mels, classes, seed=4):
        g = torch.Generator().manual_seed(seed)
        self.length = torch.randn(n, generator=g).mul(0.7).add(4.0).exp().clamp(12, 320).long().tolist()
        self.label = torch.randint(0, classes, (n,), generator=g).tolist()
        self.proto = torch.randn(classes, mels, generator=g)
        self.seed = seed

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        x = torch.randn(self.length[i], self.proto.size(1), generator=g) * 2 + self.proto[self.label[i]]
        return x, self.label[i]


def pad(batch):
    xs, ys = zip(*batch)
    return pad_sequence(xs, batch_first=True), torch.tensor([len(x) for x in xs]), torch.tensor(ys)
