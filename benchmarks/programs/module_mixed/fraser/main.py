"""Tensor parallel feed-forward blocks through DTensor; all ranks of the mesh read the same batch."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCAB, D, STEPS = 48, 32, 14


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(D, 4 * D), nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.rnn, self.ffn = nn.GRU(D, D, batch_first=True), FeedForward()

    def forward(self, x):
        x = x + self.rnn(self.n1(x))[0]
        return x + self.ffn(self.n2(x))


class LM(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.emb, self.out = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)
        self.layers = nn.ModuleList(Mixer() for _ in range(depth))

    def forward(self, ids):
        h = self.emb(ids)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(8)
    model = LM()
    plan = {"ffn.w1": ColwiseParallel(), "ffn.w3": ColwiseParallel(), "ffn.w2": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], plan)
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3, foreach=False)
    g = torch.Generator().manual_seed(77)
    for step in range(STEPS):
        start = torch.randint(0, VOCAB, (12, 1), generator=g)
        ids = (start + 5 * torch.arange(21)) % VOCAB
        loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 4 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
