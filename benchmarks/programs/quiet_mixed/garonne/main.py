import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from adapters import adapter_state, inject
from data import get_loader
from sync import average_gradients


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def load_base(args):
    seed_everything(args.seed)
    config = LlamaConfig(
        vocab_size=args.vocab, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=args.length,
        attention_dropout=0.1,
    )
    return LlamaForCausalLM(config)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--samples", type=int, default=512)
    p.add_argument("--vocab", type=int, default=64)
    p.add_argument("--length", type=int, default=20)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--lr", type=float, default=5e-3)
    p.add_argument("--seed", type=int, default=1234)
    p.add_argument("--targets", nargs="+", default=["q_proj", "v_proj", "up_proj"])
    return p.parse_args()


def main():
    args = parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()

    model = load_base(args)
    seed_everything(args.seed + rank)
    params = inject(model, args.targets)
    for p in params:
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.0)
    loader, sampler = get_loader(args)

    model.train()
    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids in loader:
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            average_gradients(params)
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if rank == 0 and step % 8 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)

    if rank == 0:
        torch.save(adapter_state(model), "adapter.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
