"""Character model trained with plain SGD, several micro-batches per update."""
import math
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB = "abcdefghijklmnopqrstuvwxyz .,"
CONTEXT = 24
EMBED = 48
HIDDEN = 160
MICRO_BATCH = 16
ACCUM = 3
EPOCHS = 3
WINDOWS = 1920
BASE_LR = 0.25
CLIP = 1.0


def make_corpus(length, seed):
    rng = random.Random(seed)
    words = ["".join(rng.choice(VOCAB[:26]) for _ in range(rng.randint(2, 7))) for _ in range(60)]
    pieces = []
    size = 0
    while size < length:
        word = words[min(int(rng.expovariate(0.08)), len(words) - 1)]
        tail = rng.choices([" ", ", ", ". "], weights=[8, 1, 1])[0]
        pieces.append(word + tail)
        size += len(word) + len(tail)
    table = {c: i for i, c in enumerate(VOCAB)}
    return torch.tensor([table[c] for c in "".join(pieces)[:length]], dtype=torch.long)


def build_model():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Embedding(len(VOCAB), EMBED),
        nn.Flatten(),
        nn.Linear(EMBED * CONTEXT, HIDDEN),
        nn.LayerNorm(HIDDEN),
        nn.GELU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.GELU(),
        nn.Linear(HIDDEN, len(VOCAB)),
    )


def windows(corpus, starts):
    offsets = torch.arange(CONTEXT)
    x = corpus[starts[:, None] + offsets[None, :]]
    y = corpus[starts + CONTEXT]
    return x, y


def epoch_starts(epoch, rank, world):
    g = torch.Generator().manual_seed(1000 + epoch)
    order = torch.randperm(WINDOWS, generator=g)
    return order[rank::world]


def average_gradients(params, world):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for p in params:
        n = p.numel()
        p.grad.copy_(flat[offset:offset + n].view_as(p))
        offset += n


def learning_rate(update, total):
    warm = max(1, total // 10)
    if update < warm:
        return BASE_LR * (update + 1) / warm
    frac = (update - warm) / max(1, total - warm)
    return BASE_LR * 0.5 * (1 + math.cos(math.pi * frac))


@torch.no_grad()
def evaluate(model, corpus, rank, world):
    model.eval()
    starts = torch.arange(WINDOWS + CONTEXT, len(corpus) - CONTEXT - 1, 3)[rank::world]
    acc = torch.zeros(2, dtype=torch.float64)
    for chunk in starts.split(128):
        x, y = windows(corpus, chunk)
        acc[0] += F.cross_entropy(model(x), y, reduction="sum").item()
        acc[1] += y.numel()
    dist.all_reduce(acc)
    model.train()
    return (acc[0] / acc[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    corpus = make_corpus(WINDOWS + 900, seed=3)
    model = build_model()
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=BASE_LR, momentum=0.9)
    micro_per_epoch = WINDOWS // (world * MICRO_BATCH)
    total_updates = EPOCHS * (micro_per_epoch // ACCUM)
    update = 0
    for epoch in range(EPOCHS):
        began = time.time()
        starts = epoch_starts(epoch, rank, world)
        running = torch.zeros(2)
        for it in range(micro_per_epoch // ACCUM * ACCUM):
            chunk = starts[it * MICRO_BATCH:(it + 1) * MICRO_BATCH]
            x, y = windows(corpus, chunk)
            loss = F.cross_entropy(model(x), y)
            (loss / ACCUM).backward()
            running += torch.tensor([loss.item(), 1.0])
            if it % ACCUM == 0:
                average_gradients(params, world)
            if (it + 1) % ACCUM == 0:
                nn.utils.clip_grad_norm_(params, CLIP)
                for group in opt.param_groups:
                    group["lr"] = learning_rate(update, total_updates)
                opt.step()
                opt.zero_grad(set_to_none=True)
                update += 1
        dist.all_reduce(running)
        val = evaluate(model, corpus, rank, world)
        if rank == 0:
            print(f"epoch {epoch} updates {update} train {running[0] / running[1]:.4f} "
                  f"val {val:.4f} lr {opt.param_groups[0]['lr']:.4f} {time.time() - began:.1f}s", flush=True)
    if rank == 0:
        os.makedirs("runs", exist_ok=True)
        torch.save(model.state_dict(), os.path.join("runs", "alder.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
