import contextlib
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

IGNORE = -100


@dataclass
class Args:
    gradient_accumulation_steps: int = 4
    per_device_batch_size: int = 4
    learning_rate: float = 0.2
    num_epochs: int = 4
    vocab: int = 32


class Dialogues(Dataset):
    def __init__(self, n, vocab, max_len=20):
        g = torch.Generator().manual_seed(31)
        self.items = []
        for _ in range(n):
            length = int(torch.randint(4, max_len, (1,), generator=g))
            start = int(torch.randint(0, vocab, (1,), generator=g))
            self.items.append((start + 3 * torch.arange(length + 1)) % vocab)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    ids = nn.utils.rnn.pad_sequence([b[:-1] for b in batch], batch_first=True)
    labels = nn.utils.rnn.pad_sequence([b[1:] for b in batch], batch_first=True, padding_value=IGNORE)
    return ids, labels


class TinyLM(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


class Trainer:
    def __init__(self, args):
        self.args = args
        self.world = dist.get_world_size()
        torch.manual_seed(4)
        self.model = DDP(TinyLM(args.vocab))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.learning_rate)
        data = Dialogues(256, args.vocab)
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, args.per_device_batch_size, sampler=self.sampler, collate_fn=collate)

    def compute_loss(self, ids, labels, num_items_in_batch):
        logits = self.model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
        return loss * self.world / num_items_in_batch

    def training_step(self, ids, labels, num_items_in_batch):
        loss = self.compute_loss(ids, labels, num_items_in_batch)
        loss.backward()
        return loss.detach()

    def windows(self):
        window = []
        for batch in self.loader:
            window.append(batch)
            if len(window) == self.args.gradient_accumulation_steps:
                yield window
                window = []

    def train(self):
        for epoch in range(self.args.num_epochs):
            self.sampler.set_epoch(epoch)
            total = torch.zeros(())
            for window in self.windows():
                num_items = torch.tensor(float(sum((lab != IGNORE).sum() for _, lab in window)))
                dist.all_reduce(num_items)
                self.optimizer.zero_grad(set_to_none=True)
                for i, (ids, labels) in enumerate(window):
                    last = i == len(window) - 1
                    with contextlib.nullcontext() if last else self.model.no_sync():
                        total += self.training_step(ids, labels, num_items)
                self.optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch} {total.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(Args()).train()
    dist.destroy_process_group()
