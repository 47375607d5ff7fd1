import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from loop import FitLoop
from progress import Progress


class Tagger(nn.Module):
    def __init__(self, vocab=80, d=24, tags=7):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv = nn.Conv1d(d, 48, 3, padding=1)
        self.out = nn.Linear(48, tags)

    def forward(self, ids):
        h = torch.relu(self.conv(self.emb(ids).transpose(1, 2)))
        return self.out(h.max(-1).values)


def sentences(n=540):
    g = torch.Generator().manual_seed(66)
    ids = torch.randint(0, 80, (n, 14), generator=g)
    return TensorDataset(ids, ids.max(1).values * 7 // 80)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(41)
    model = DDP(Tagger())
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ds = sentences()
    loader = DataLoader(ds, batch_size=15, sampler=DistributedSampler(ds, shuffle=True, seed=12))
    progress = Progress(dataset_size=len(ds))
    FitLoop(model, opt, loader, progress, max_passes=3).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
