"""Accelerate accumulation normalised by the number of target tokens in the whole window."""
import itertools
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

PAD, VOCAB, ACC = 0, 40, 4


class Phrases(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(4, 40, (1,), generator=g))
        a = int(torch.randint(1, VOCAB, (1,), generator=g))
        return (a + 3 * torch.arange(n)) % (VOCAB - 1) + 1


def collate(items):
    return nn.utils.rnn.pad_sequence(items, batch_first=True, padding_value=PAD)


class GRULM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(VOCAB, 32, padding_idx=PAD)
        self.r = nn.GRU(32, 64, batch_first=True)
        self.o = nn.Linear(64, VOCAB)

    def forward(self, t):
        return self.o(self.r(self.e(t))[0])


def main():
    acc = Accelerator(cpu=True, gradient_accumulation_steps=ACC)
    torch.manual_seed(0)
    model = GRULM()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    loader = DataLoader(Phrases(), batch_size=8, shuffle=True, collate_fn=collate)
    model, opt, loader = acc.prepare(model, opt, loader)
    it = iter(loader)
    for window in range(len(loader) // ACC):
        chunk = list(itertools.islice(it, ACC))
        mine = sum((b[:, 1:] != PAD).sum() for b in chunk)
        total = acc.reduce(mine, reduction="sum")
        seen = torch.zeros(())
        for b in chunk:
            with acc.accumulate(model):
                out = model(b[:, :-1])
                loss = nn.functional.cross_entropy(out.flatten(0, 1), b[:, 1:].flatten(), ignore_index=PAD, reduction="sum")
                scaled = loss * acc.num_processes * ACC / total
                acc.backward(scaled)
                opt.step()
                opt.zero_grad()
                seen += loss.detach()
        if window % 5 == 0:
            g = acc.reduce(seen, reduction="sum") / total
            acc.print(f"window {window} tokens {int(total)} loss {g.item():.4f}", flush=True)
    sums = acc.gather(sum(p.detach().double().sum() for p in model.parameters()).reshape(1))
    acc.print("checksums", sums.tolist())
    acc.end_training()


if __name__ == "__main__":
    main()
