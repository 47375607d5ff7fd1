import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class SharedExpertMoE(nn.Module):
    def __init__(self, dim=12, experts=4):
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.shared = nn.Linear(dim, dim)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, 24), nn.GELU(), nn.Linear(24, dim)) for _ in range(experts))

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        top = probs.argmax(-1)
        out = self.shared(x)
        for i, expert in enumerate(self.experts):
            idx = (top == i).nonzero().squeeze(1)
            if len(idx):
                out = out.index_add(0, idx, expert(x[idx]) * probs[idx, i, None])
            else:
                out = out + 0.0 * sum(p.sum() for p in expert.parameters())
        balance = (probs.mean(0) * F.one_hot(top, len(self.experts)).float().mean(0)).sum() * len(self.experts)
        return x + out, balance


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.moe, self.head = nn.Linear(9, 12), SharedExpertMoE(), nn.Linear(12, 4)

    def forward(self, x):
        h, balance = self.moe(F.relu(self.stem(x)))
        return self.head(h), balance


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(13)
    model = DDP(Net())
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    g = torch.Generator().manual_seed(2)
    x = torch.randn(240, 9, generator=g)
    ds = TensorDataset(x, (x @ torch.randn(9, 4, generator=g)).argmax(1))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, 4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            logits, balance = model(bx)
            loss = F.cross_entropy(logits, by) + 0.01 * balance
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
