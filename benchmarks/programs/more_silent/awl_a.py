"""Sequence tagger on sentences of very different length; the loss is per token over the whole global batch."""
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

IGNORE = -100
WORDS, TAGS = 80, 7


class Tagged(Dataset):
    def __init__(self, n=540):
        rnd = random.Random(31)
        self.sents = [[rnd.randrange(1, WORDS) for _ in range(rnd.choice([4, 6, 9, 25, 40]))] for _ in range(n)]

    def __len__(self):
        return len(self.sents)

    def __getitem__(self, i):
        words = torch.tensor(self.sents[i])
        tags = (words + F.pad(words[:-1], (1, 0))) % TAGS
        return words, tags


def collate(pairs):
    words, tags = zip(*pairs)
    return pad_sequence(words, batch_first=True), pad_sequence(tags, batch_first=True, padding_value=IGNORE)


class Tagger(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.emb = nn.Embedding(WORDS, width, padding_idx=0)
        self.conv = nn.Conv1d(width, width, 2)
        self.out = nn.Linear(width, TAGS)

    def forward(self, words):
        h = self.emb(words).transpose(1, 2)
        h = self.conv(F.pad(h, (1, 0))).transpose(1, 2)
        return self.out(h.relu())


def global_token_loss(logits, tags):
    """Sum over our tokens, divided by the number of tokens that all ranks have in this step."""
    tokens = (tags != IGNORE).sum().float()
    dist.all_reduce(tokens)
    total = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=IGNORE, reduction="sum")
    return total * dist.get_world_size() / tokens


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Tagged()
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=12, sampler=sampler, collate_fn=collate)
    net = DDP(Tagger())
    optim = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        right = torch.zeros(2)
        for words, tags in loader:
            logits = net(words)
            loss = global_token_loss(logits, tags)
            optim.zero_grad()
            loss.backward()
            optim.step()
            mask = tags != IGNORE
            right += torch.tensor([(logits.argmax(-1) == tags)[mask].sum(), mask.sum()])
        dist.all_reduce(right)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: token accuracy {right[0] / right[1]:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
