"""GRPO with a separate rollout engine, accelerate for data parallelism."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed

from engine import RolloutEngine


class CausalLM(nn.Module):
    def __init__(self, vocab, dim, layers=2, heads=4, ctx=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(ctx, dim)
        self.attn = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(layers))
        self.proj = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))
        self.mlp = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(),
                                               nn.Linear(2 * dim, dim)) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.ln_f, self.heads = nn.LayerNorm(dim), heads
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        b, t = ids.shape
        x = self.wte(ids) + self.wpe.weight[:t]
        for attn, proj, mlp, norm in zip(self.attn, self.proj, self.mlp, self.norm):
            q, k, v = attn(norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + proj(y.transpose(1, 2).reshape(b, t, -1))
            x = x + mlp(x)
        return self.lm_head(self.ln_f(x))


def reward_fn(seq, prompt_len):
    resp, prev = seq[:, prompt_len:], seq[:, prompt_len - 1:-1]
    return (resp > prev).float().mean(1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=60)
    ap.add_argument("--prompts", type=int, default=6)
    ap.add_argument("--group", type=int, default=6)
    ap.add_argument("--prompt-len", type=int, default=4)
    ap.add_argument("--max-new", type=int, default=6)
    ap.add_argument("--inner-epochs", type=int, default=2)
    ap.add_argument("--sync-every", type=int, default=1)
    ap.add_argument("--vocab", type=int, default=40)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--clip", type=float, default=0.2)
    args = ap.parse_args()

    acc = Accelerator(cpu=True)
    set_seed(7)
    model = CausalLM(args.vocab, 64)
    engine = RolloutEngine(model, args.max_new, seed=100 + acc.process_index)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    policy, opt = acc.prepare(model, opt)
    gen = torch.Generator().manual_seed(acc.process_index)

    t0 = time.time()
    for it in range(args.iters):
        if it % args.sync_every == 0:
            engine.load_weights(acc.unwrap_model(policy).state_dict().items())
        prompts = torch.randint(0, args.vocab // 2, (args.prompts, args.prompt_len), generator=gen)
        seq, old_logp = engine.generate(prompts.repeat_interleave(args.group, 0))
        reward = reward_fn(seq, args.prompt_len)
        grouped = reward.view(-1, args.group)
        adv = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        for _ in range(args.inner_epochs):
            logits = policy(seq[:, :-1])[:, args.prompt_len - 1:]
            logp = logits.log_softmax(-1).gather(-1, seq[:, args.prompt_len:].unsqueeze(-1)).squeeze(-1)
            ratio = (logp - old_logp).exp()
            surrogate = torch.minimum(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv)
            loss = -surrogate.mean()
            acc.backward(loss)
            acc.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        if it % 5 == 0:
            mean = acc.reduce(reward.mean(), reduction="mean").item()
            acc.print(f"iter {it} reward {mean:.3f} loss {loss.item():.4f} {time.time() - t0:.1f}s", flush=True)
    acc.wait_for_everyone()
    acc.print(f"done in {time.time() - t0:.1f}s", flush=True)
    acc.end_training()


if __name__ == "__main__":
    main()
