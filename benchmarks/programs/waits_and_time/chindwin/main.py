import argparse
import logging
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from data import ShardedWeightedSampler, TagCorpus
from mining import HardExampleExchange
from model import TagTransformer, flat_average_

log = logging.getLogger("chindwin")


@dataclass
class Config:
    vocab: int = 320
    classes: int = 8
    length: int = 24
    size: int = 1080
    batch: int = 24
    width: int = 48
    heads: int = 4
    layers: int = 2
    epochs: int = 6
    lr: float = 2e-3
    threshold: float = 1.9
    boost: float = 2.0
    seed: int = 11


def parse() -> Config:
    p = argparse.ArgumentParser()
    for name, value in Config().__dict__.items():
        p.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return Config(**vars(p.parse_args()))


def accuracy(model, corpus, lo, hi):
    model.eval()
    with torch.no_grad():
        hit = (model(corpus.ids[lo:hi]).argmax(-1) == corpus.labels[lo:hi]).sum()
    model.train()
    t = torch.tensor([float(hit), float(hi - lo)])
    dist.all_reduce(t)
    return (t[0] / t[1]).item()


def main():
    cfg = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(name)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)

    corpus = TagCorpus(cfg.size, cfg.length, cfg.vocab, cfg.classes, cfg.seed)
    model = TagTransformer(cfg.vocab, cfg.width, cfg.heads, cfg.layers, cfg.classes, cfg.length)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    sampler = ShardedWeightedSampler(corpus, rank, world, cfg.seed)
    exchange = HardExampleExchange(_get_default_store(), rank, world, cfg.threshold)
    params = list(model.parameters())

    for epoch in range(cfg.epochs):
        began = time.time()
        total, steps = 0.0, 0
        for idx in sampler.epoch(epoch, cfg.batch):
            loss = torch.nn.functional.cross_entropy(model(corpus.ids[idx]), corpus.labels[idx])
            opt.zero_grad()
            loss.backward()
            flat_average_(params, world)
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            total += loss.item()
            steps += 1
        acc = accuracy(model, corpus, sampler.lo, sampler.hi)
        if rank == 0:
            log.info("epoch %d loss %.3f acc %.3f (%.1fs)", epoch, total / steps, acc, time.time() - began)
        if epoch + 1 < cfg.epochs:
            hard = exchange.scan(model, corpus, sampler.lo, sampler.hi, 60)
            exchange.report(epoch, hard)
            sampler.weights = exchange.merge(epoch, sampler.weights, cfg.boost)

    if rank == 0:
        log.info("finished: %d parameters", sum(p.numel() for p in params))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
