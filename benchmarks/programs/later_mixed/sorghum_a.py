"""Two-phase language model run: pre-training, then a second phase built from the stored weights."""
import argparse
import io

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TiedLM(nn.Module):
    """The output projection shares its weight with the embedding."""

    def __init__(self, vocab=48, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.tie()

    def tie(self):
        self.head.weight = self.embed.weight

    def forward(self, ids):
        h, _ = self.rnn(self.embed(ids))
        return self.head(self.norm(h))


class Stream:
    def __init__(self, seed, vocab=48, jump=1):
        self.gen = torch.Generator().manual_seed(seed)
        self.vocab, self.jump = vocab, jump

    def batch(self, size=24, length=10):
        start = torch.randint(0, self.vocab, (size, 1), generator=self.gen)
        return (start + self.jump * torch.arange(length + 1)) % self.vocab


def build_from(buffer):
    """Builds the model without allocating its weights twice."""
    with torch.device("meta"):
        model = TiedLM()
    state = torch.load(buffer, weights_only=True)
    model.load_state_dict(state, assign=True)
    model.tie()
    for p in model.parameters():
        p.requires_grad_(True)
    return model


def train(model, stream, steps, lr, tag):
    ddp = DDP(model)
    opt = torch.optim.AdamW(ddp.parameters(), lr=lr, weight_decay=0.01)
    for step in range(steps):
        ids = stream.batch()
        logits = ddp(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0 and step % 15 == 0:
            print(f"{tag} step {step} loss {loss.item():.4f}", flush=True)
    return loss.item()


def pack(model):
    """Weights with a value of its own for every name, as the file format asks for."""
    buffer = io.BytesIO()
    torch.save({k: v.detach().clone() for k, v in model.state_dict().items()}, buffer)
    buffer.seek(0)
    return buffer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--first", type=int, default=30)
    ap.add_argument("--second", type=int, default=30)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(10)

    base = TiedLM()
    train(base, Stream(rank), args.first, args.lr, "phase 1")
    blob = pack(base)
    del base
    model = build_from(blob)
    last = train(model, Stream(50 + rank, jump=3), args.second, args.lr, "phase 2")
    if rank == 0:
        size = sum(p.numel() for p in model.parameters())
        print(f"done, loss {last:.4f}, {size} weights")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
