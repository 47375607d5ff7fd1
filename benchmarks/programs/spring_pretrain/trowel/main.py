"""Megatron-style GPT: tensor parallel inside a node, data parallel across."""
import argparse
import logging
import os
import time

import torch
import torch.distributed as dist

import layers
from optim import all_reduce_grads, clip_grad_norm, cosine_lr


def synthetic_batches(args, dp_rank):
    gen = torch.Generator().manual_seed(args.seed + 17 * dp_rank)
    motif = torch.randint(0, args.vocab, (32, 8), generator=torch.Generator().manual_seed(5))
    while True:
        ids = torch.randint(0, 32, (args.micro_batch_size, args.seq_len // 8 + 1), generator=gen)
        seq = motif[ids].flatten(1)[:, :args.seq_len + 1]
        yield seq[:, :-1], seq[:, 1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--train-iters", type=int, default=120)
    p.add_argument("--tensor-model-parallel-size", type=int, default=2)
    p.add_argument("--micro-batch-size", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=32)
    p.add_argument("--vocab", type=int, default=128)
    p.add_argument("--hidden-size", type=int, default=64)
    p.add_argument("--num-attention-heads", type=int, default=4)
    p.add_argument("--num-layers", type=int, default=2)
    p.add_argument("--lr", type=float, default=0.5)
    p.add_argument("--clip-grad", type=float, default=0.5)
    p.add_argument("--seed", type=int, default=1234)
    p.add_argument("--save", default=f"/tmp/megatron-mini-{os.getppid()}")
    args = p.parse_args()

    dist.init_process_group("gloo")
    layers.init_model_parallel(args.tensor_model_parallel_size)
    rank = dist.get_rank()
    dp_rank, tp_rank = dist.get_rank(layers.dp_group()), dist.get_rank(layers.tp_group())
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")

    torch.manual_seed(args.seed)
    model = layers.ParallelGPT(args.vocab, args.seq_len, args.hidden_size, args.num_attention_heads, args.num_layers)
    params = list(model.parameters())
    opt = torch.optim.SGD(params, lr=args.lr, momentum=0.9)
    data = synthetic_batches(args, dp_rank)

    t0 = time.time()
    for it in range(args.train_iters):
        for g in opt.param_groups:
            g["lr"] = cosine_lr(it, 10, args.train_iters, args.lr)
        tokens, labels = next(data)
        loss = model(tokens, labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        all_reduce_grads(params)
        norm = clip_grad_norm(params, args.clip_grad)
        opt.step()
        if it % 10 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean, group=layers.dp_group())
            logging.info("iteration %d | lm loss %.4f | grad norm %.3f | %.1fs", it,
                         mean.item() / dist.get_world_size(layers.dp_group()), norm, time.time() - t0)

    if dp_rank == 0:
        os.makedirs(args.save, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(args.save, f"mp_rank_{tp_rank:02d}.pt"))
    dist.barrier()
    logging.info("saved to %s", args.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
