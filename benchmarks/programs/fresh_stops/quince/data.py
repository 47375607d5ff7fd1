"""Synthetic dialogues for drafter training: a prompt that is not supervised, then a reply that is."""
import torch
from torch.utils.data import Dataset

VOCAB = 64
SEQ = 48


class Dialogues(Dataset):
    def __init__(self, n=480, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(2, VOCAB, (n, SEQ), generator=g)
        for t in range(2, SEQ):
            keep = torch.rand(n, generator=g) < 0.8
            nxt = (self.tokens[:, t - 1] * 3 + self.tokens[:, t - 2]) % (VOCAB - 2) + 2
            self.tokens[:, t] = torch.where(keep, nxt, self.tokens[:, t])
        chatty = torch.rand(n, generator=g) < 0.62
        reply = torch.where(chatty, torch.randint(12, 30, (n,), generator=g), torch.randint(2, 7, (n,), generator=g))
        self.reply = reply

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        mask = torch.zeros(SEQ, dtype=torch.bool)
        mask[SEQ - int(self.reply[i]):] = True
        return self.tokens[i], mask
