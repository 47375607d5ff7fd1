from dataclasses import dataclass

import torch


@dataclass
class Rollout:
    tokens: torch.Tensor      # [prompt + response]
    prompt_len: int
    reward: float
    advantage: float = 0.0


@torch.no_grad()
def generate(model, prompts, max_new, eos, gen):
    """Sample one response per prompt; all rows run for max_new steps and are cut at eos."""
    seq = prompts
    for _ in range(max_new):
        probs = model(seq)[:, -1].float().softmax(-1)
        seq = torch.cat([seq, torch.multinomial(probs, 1, generator=gen)], 1)
    out = []
    for row in seq:
        resp = row[prompts.shape[1]:]
        stop = (resp == eos).nonzero()
        end = stop[0, 0].item() + 1 if len(stop) else max_new
        out.append(row[:prompts.shape[1] + end])
    return out


def reward_fn(tokens, prompt_len, eos):
    """Copy task: a response earns a point for each token that is the prompt's successor token."""
    resp = tokens[prompt_len:]
    want = tokens[prompt_len - 1:-1] + 1
    hits = (resp == want).float().sum().item()
    return hits / 4


def group_advantage(rollouts, group):
    for i in range(0, len(rollouts), group):
        r = torch.tensor([x.reward for x in rollouts[i:i + group]])
        adv = (r - r.mean()) / (r.std() + 1e-4)
        for x, a in zip(rollouts[i:i + group], adv.tolist()):
            x.advantage = a
