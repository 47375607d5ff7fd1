import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

IGNORE = -100


class Dialogues(Dataset):
    def __init__(self, n=1200):
        g = torch.Generator().manual_seed(33)
        self.rows = []
        for i in range(n):
            prompt = torch.randint(1, 70, (6,), generator=g)
            short = i % 2 == 0
            k = int(torch.randint(1, 4, (1,), generator=g)) if short else int(torch.randint(24, 34, (1,), generator=g))
            answer = (prompt[0] * 3 + torch.arange(k)) % 70 if short else (prompt[1] * 5 + 2 * torch.arange(k)) % 70
            ids = torch.cat([prompt, answer])
            labels = torch.cat([torch.full((6,), IGNORE), answer])
            self.rows.append((ids, labels))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    ids, labels = zip(*rows)
    pad = nn.utils.rnn.pad_sequence
    return pad(ids, batch_first=True), pad(labels, batch_first=True, padding_value=IGNORE)


class CausalLM(nn.Module):
    def __init__(self, vocab=70, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


class StepLoss:
    def __init__(self, world):
        self.world = world

    def __call__(self, logits, labels):
        target = labels[:, 1:].flatten()
        total = F.cross_entropy(logits[:, :-1].flatten(0, 1), target, ignore_index=IGNORE, reduction="sum")
        count = (target != IGNORE).sum().float()
        dist.all_reduce(count)
        return total * self.world / count


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = Dialogues()
    sampler = DistributedSampler(data, world, rank, shuffle=True)
    loader = DataLoader(data, batch_size=12, sampler=sampler, collate_fn=collate)
    model = DDP(CausalLM())
    objective = StepLoss(world)
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    first = None
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for ids, labels in loader:
            loss = objective(model(ids), labels)
            opt.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0).item()
            first = norm if first is None else first
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
