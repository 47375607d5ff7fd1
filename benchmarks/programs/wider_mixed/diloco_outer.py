"""Communication-light pretraining: H local AdamW steps, then one outer Nesterov step on the averaged delta."""
import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class TinyLM(nn.Module):
    def __init__(self, vocab=64, dim=32, layers=2):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(32, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        t = ids.size(1)
        h = self.tok(ids) + self.pos.weight[:t]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        return self.head(self.blocks(h, mask=mask, is_causal=True))


class OuterOptimizer:
    def __init__(self, model, lr=0.7, momentum=0.9):
        self.model = model
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.opt = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    def step(self):
        for a, p in zip(self.anchor, self.model.parameters()):
            delta = a - p.detach()
            dist.all_reduce(delta)
            a.grad = delta / dist.get_world_size()
        self.opt.step()
        with torch.no_grad():
            for a, p in zip(self.anchor, self.model.parameters()):
                p.copy_(a)


def stream(seed, vocab=64, batch=8, length=24):
    g = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(0, vocab, (batch, 1), generator=g)
        stride = torch.randint(1, 4, (batch, 1), generator=g)
        yield (start + stride * torch.arange(length)) % vocab


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--outer-rounds", type=int, default=6)
    ap.add_argument("--inner-steps", type=int, default=8)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = TinyLM()
    inner = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    outer = OuterOptimizer(model)
    data = stream(1000 + rank)

    for rnd in range(args.outer_rounds):
        losses = []
        for _ in range(args.inner_steps):
            ids = next(data)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            inner.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
            losses.append(loss.item())
        outer.step()
        mean = torch.tensor(sum(losses) / len(losses))
        dist.all_reduce(mean)
        if rank == 0:
            print(f"round {rnd} inner loss {mean.item() / dist.get_world_size():.4f}", flush=True)
    if rank == 0:
        snapshot = copy.deepcopy(model.state_dict())
        print("saved", sum(v.numel() for v in snapshot.values()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
