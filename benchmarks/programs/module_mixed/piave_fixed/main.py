import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from bucketing import LengthBatches

EPOCHS, BATCH, VOCAB = 2, 12, 60


class Utterances(Dataset):
    def __init__(self, n=300):
        g = torch.Generator().manual_seed(9)
        self.lengths = (10 + 150 * torch.rand(n, generator=g).pow(1.5)).long().tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        start = int(torch.randint(0, VOCAB, (1,), generator=g))
        return (start + torch.arange(self.lengths[i])) % VOCAB


class Recogniser(nn.Module):
    def __init__(self, d=96):
        super().__init__()
        self.emb = nn.Embedding(VOCAB + 1, d, padding_idx=VOCAB)
        self.rnn = nn.GRU(d, d, num_layers=2, batch_first=True)
        self.out = nn.Linear(d, VOCAB + 1)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def collate(rows):
    return pad_sequence(rows, batch_first=True, padding_value=VOCAB)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(24)
    ds = Utterances()
    sampler = LengthBatches(ds.lengths, BATCH, rank, world)
    loader = DataLoader(ds, batch_sampler=sampler, collate_fn=collate)
    model = DDP(Recogniser())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for ids in loader:
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=VOCAB)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} batches {len(sampler)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
