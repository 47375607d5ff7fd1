import argparse
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from reports import TOPICS, desk_documents
from session import PostMortem, process_group
from vocab import Vocabulary

log = logging.getLogger("tickets")


class TicketClassifier(nn.Module):
    def __init__(self, vocab_size, dim, classes):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        out, _ = self.rnn(self.embed(ids))
        return self.head(out.mean(dim=1))


def shared_vocabulary(documents, rank, max_size):
    box = [Vocabulary.build([d for d, _ in documents], max_size) if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def train(args, rank, world_size):
    documents = desk_documents(rank)
    vocab = shared_vocabulary(documents, rank, args.max_vocab)
    ids = torch.tensor([vocab.encode(words) for words, _ in documents])
    topics = torch.tensor([t for _, t in documents])

    torch.manual_seed(0)
    model = DDP(TicketClassifier(len(vocab), args.dim, len(TOPICS)))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    post_mortem = PostMortem(rank)
    step = 0
    try:
        for epoch in range(args.epochs):
            stats = torch.zeros(2)
            for x, y in zip(ids.split(args.batch_size), topics.split(args.batch_size)):
                post_mortem.remember(step, (x, y))
                out = model(x)
                loss = nn.functional.cross_entropy(out, y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                stats += torch.tensor([loss.item(), (out.argmax(1) == y).float().mean()])
                step += 1
            dist.all_reduce(stats)
            if rank == 0:
                n = world_size * len(ids.split(args.batch_size))
                log.info("epoch %d loss %.4f acc %.4f", epoch, stats[0] / n, stats[1] / n)
    except (IndexError, ValueError, ArithmeticError):
        log.error("step %d failed, state kept in %s", step, post_mortem.store(model.module))
        raise


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=6)
    p.add_argument("--batch-size", type=int, default=16)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--max-vocab", type=int, default=400)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()
    with process_group() as (rank, world_size):
        train(args, rank, world_size)
        dist.barrier()
        if rank == 0:
            log.info("finished")


if __name__ == "__main__":
    main()
