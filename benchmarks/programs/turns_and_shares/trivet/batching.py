"""Sentences of uneven length, packed so that a padded batch stays under a token budget."""
import torch


class Sentences:
    def __init__(self, count, vocab, seed, shortest=4, longest=40):
        g = torch.Generator().manual_seed(seed)
        spread = torch.rand(count, generator=g).pow(2.5)
        lengths = (shortest + spread * (longest - shortest)).long()
        self.rows = []
        for n in lengths.tolist():
            start = int(torch.randint(2, vocab, (1,), generator=g))
            jump = int(torch.randint(1, 4, (1,), generator=g))
            self.rows.append((torch.arange(n + 1) * jump + start - 2) % (vocab - 2) + 2)

    def __len__(self):
        return len(self.rows)

    def length(self, i):
        return len(self.rows[i]) - 1


class TokenBudget:
    def __init__(self, data, budget, rank, world, seed):
        self.data, self.budget = data, budget
        self.rank, self.world, self.seed = rank, world, seed

    def plan(self, epoch):
        g = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(len(self.data), generator=g).tolist()
        order = order[:len(order) // self.world * self.world]
        mine = order[self.rank::self.world]
        batches, current, longest = [], [], 0
        for i in mine:
            n = max(longest, self.data.length(i))
            if current and n * (len(current) + 1) > self.budget:
                batches.append(current)
                current, n = [], self.data.length(i)
            current.append(i)
            longest = n
        if current:
            batches.append(current)
        return batches

    def collate(self, picks):
        rows = [self.data.rows[i] for i in picks]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return padded[:, :-1], padded[:, 1:]
