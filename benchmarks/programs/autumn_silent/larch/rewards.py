import torch


def echo_reward(prompts, completions):
    """Share of completion positions that repeat the prompt, cyclically."""
    length = prompts.size(1)
    idx = torch.arange(completions.size(1)) % length
    return (completions == prompts[:, idx]).float().mean(dim=1)


def diversity_penalty(completions):
    repeats = (completions[:, 1:] == completions[:, :-1]).float().mean(dim=1)
    return -0.1 * repeats
