import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer import Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, n=1200):
        g = torch.Generator().manual_seed(18)
        self.ids = torch.randint(0, 64, (n, 12), generator=g)
        self.label = (self.ids.float().mean(1) > 32).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input": self.ids[i], "label": self.label[i]}


class BagClassifier(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(64, d)
        self.mlp = nn.Sequential(nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 2))

    def forward(self, ids):
        return self.mlp(self.emb(ids))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(2)
    ds = Sentences()
    loader = DataLoader(ds, batch_size=8, sampler=DistributedSampler(ds, seed=4), drop_last=True)
    Trainer(BagClassifier(), TrainingArguments(), loader).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
