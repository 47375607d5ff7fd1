"""Stream intent utterances with HF datasets and train a small tagger on CPU."""
import argparse
import logging
import os
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Env:
    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_torchrun(cls):
        e = os.environ
        return cls(int(e["RANK"]), int(e["LOCAL_RANK"]), int(e["WORLD_SIZE"]))


def utterances(shards):
    for shard in shards:
        rng = random.Random(shard)
        for i in range(40):
            intent = rng.randrange(6)
            tokens = [rng.randrange(10) + 10 * intent if rng.random() < 0.4 else rng.randrange(60)
                      for _ in range(12)]
            yield {"uid": f"utt-{shard}-{i}", "tokens": tokens, "intent": intent}


def training_stream(env, args):
    ds = IterableDataset.from_generator(utterances, gen_kwargs={"shards": list(range(args.shards))})
    ds = split_dataset_by_node(ds, rank=env.rank, world_size=env.world_size)
    return ds.shuffle(seed=args.seed, buffer_size=100)


def collate(rows):
    return (torch.tensor([r["tokens"] for r in rows]),
            torch.tensor([r["intent"] for r in rows]))


class IntentNet(nn.Module):
    def __init__(self, vocab=60, dim=32, classes=6):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, classes))

    def forward(self, tokens):
        return self.mlp(self.embed(tokens))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=10)
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=21)
    args = parser.parse_args()

    env = Env.from_torchrun()
    dist.init_process_group("gloo", rank=env.rank, world_size=env.world_size)
    logging.basicConfig(level=logging.INFO if env.rank == 0 else logging.ERROR)
    torch.manual_seed(args.seed)
    stream = training_stream(env, args)
    loader = DataLoader(stream, batch_size=args.batch_size, collate_fn=collate)
    model = nn.parallel.DistributedDataParallel(IntentNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    step = 0
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        model.train()
        for tokens, intent in loader:
            loss = nn.functional.cross_entropy(model(tokens), intent)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                logger.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
    if env.rank == 0:
        torch.save({"model": model.module.state_dict(), "step": step}, "intent.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
