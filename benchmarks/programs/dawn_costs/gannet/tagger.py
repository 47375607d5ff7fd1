"""BiLSTM sequence tagger over utterances of very different lengths."""
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

VOCAB, TAGS = 200, 5


class Utterances(Dataset):
    """The tag of a word is the running parity class of the words so far."""

    def __init__(self, count, seed=13):
        g = torch.Generator().manual_seed(seed)
        lengths = (torch.rand(count, generator=g).pow(2) * 110).long() + 8
        self.words = [torch.randint(1, VOCAB, (int(n),), generator=g) for n in lengths]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        w = self.words[i]
        prev = torch.cat([w.new_zeros(1), w[:-1]])
        return w, (w + prev) % TAGS


def collate(items):
    items.sort(key=lambda wt: -len(wt[0]))
    lengths = torch.tensor([len(w) for w, _ in items])
    words = pad_sequence([w for w, _ in items], batch_first=True)
    tags = pad_sequence([t for _, t in items], batch_first=True, padding_value=-100)
    return words, tags, lengths


class LengthGroupedSampler(Sampler):
    """Batches of similar length so that little padding is needed."""

    def __init__(self, dataset, batch_size, rank, world):
        self.batch_size, self.epoch = batch_size, 0
        order = sorted(range(len(dataset)), key=lambda i: len(dataset.words[i]))
        per_rank = len(order) // world
        self.indices = order[rank * per_rank:(rank + 1) * per_rank]

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.indices) // self.batch_size

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        for b in torch.randperm(len(self), generator=g).tolist():
            yield self.indices[b * self.batch_size:(b + 1) * self.batch_size]


class Tagger(nn.Module):
    def __init__(self, dim=48, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, TAGS)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(states)


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Utterances(640)
    sampler = LengthGroupedSampler(data, 16, rank, world)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=8e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=-100)

    for epoch in range(6):
        sampler.set_epoch(epoch)
        begin, total = time.perf_counter(), torch.zeros(2)
        for words, tags, lengths in loader:
            scores = model(words, lengths)
            loss = criterion(scores.flatten(0, 1), tags.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f} in {time.perf_counter() - begin:.2f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
