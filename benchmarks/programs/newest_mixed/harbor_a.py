import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class SparseBlock(nn.Module):
    def __init__(self, dim, hidden, n_experts, top_k, coeff):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(n_experts))
        self.top_k = top_k
        self.coeff = coeff
        self.register_buffer("expert_bias", torch.zeros(n_experts))
        self.register_buffer("counts", torch.zeros(n_experts), persistent=False)

    def forward(self, x):
        scores = torch.sigmoid(self.gate(x))
        picked = torch.topk(scores + self.expert_bias, self.top_k, dim=-1).indices
        weights = scores.gather(1, picked)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = torch.zeros_like(scores).scatter(1, picked, weights)
        if self.training:
            with torch.no_grad():
                self.counts += torch.bincount(picked.flatten(), minlength=len(self.experts)).float()
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            out = out + mask[:, i : i + 1] * expert(x)
        return x + out

    @torch.no_grad()
    def update_bias(self):
        load = self.counts.clone()
        delta = self.coeff * torch.sign(load.mean() - load)
        self.expert_bias += delta - delta.mean()
        self.counts.zero_()


class Net(nn.Module):
    def __init__(self, vocab, dim, classes, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(SparseBlock(dim, 2 * dim, 8, 2, 5e-3) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        h = self.emb(ids).flatten(0, 1)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def batches(rank, steps, vocab):
    g = torch.Generator().manual_seed(100 + rank)
    probs = torch.softmax(torch.randn(vocab, generator=g), 0)
    for _ in range(steps):
        ids = torch.multinomial(probs, 16 * 12, replacement=True, generator=g).view(16, 12)
        yield ids, (ids * 7 + 3) % 32


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(11)
    model = DDP(Net(64, 32, 32), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (ids, target) in enumerate(batches(rank, 150, 64)):
        loss = F.cross_entropy(model(ids), target.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        for block in model.module.blocks:
            block.update_bias()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
