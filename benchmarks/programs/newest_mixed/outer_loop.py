"""Low-communication language-model training: inner AdamW, outer Nesterov SGD."""
import argparse
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class TinyLM(nn.Module):
    def __init__(self, vocab=64, dim=48, ctx=16):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(ctx, dim))
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.tok(ids) + self.pos[: ids.size(1)]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        return self.head(self.blocks(h, mask=mask, is_causal=True))


def batches(rank, vocab=64, bsz=8, ctx=17):
    g = torch.Generator().manual_seed(1000 + rank)
    step = rank + 1
    while True:
        start = torch.randint(0, vocab, (bsz, 1), generator=g)
        yield (start + step * torch.arange(ctx)) % vocab


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--inner", type=int, default=20)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(17 + rank)
    model = TinyLM()
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    anchor = [p.detach().clone().requires_grad_() for p in model.parameters()]
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
    data = batches(rank)
    for rnd in range(args.rounds):
        for _ in range(args.inner):
            ids = next(data)
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            inner.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
        for a, p in zip(anchor, model.parameters()):
            a.grad = a.data - p.data
            dist.all_reduce(a.grad)
            a.grad /= world
        outer.step()
        with torch.no_grad():
            for a, p in zip(anchor, model.parameters()):
                p.copy_(a)
        print(f"[rank {rank}] round {rnd} inner loss {loss.item():.3f}", flush=True)
    sig = torch.stack([p.detach().double().sum() for p in model.parameters()]).sum().reshape(1)
    sigs = [torch.zeros_like(sig) for _ in range(world)]
    dist.all_gather(sigs, sig)
    if rank == 0:
        print("checksums", [round(s.item(), 6) for s in sigs])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
