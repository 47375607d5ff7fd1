"""Verifiable rewards for the digit-sum toy task.

A prompt is ``a + b =``; the completion is scored on whether the first generated
token is the right answer, with a small bonus for stopping right after it.
"""
import torch

PAD, EOS, PLUS, EQ = 0, 1, 2, 3
DIGIT0 = 4
VOCAB = 32


def encode(a: int, b: int) -> list[int]:
    return [DIGIT0 + a, PLUS, DIGIT0 + b, EQ]


def target_token(a: int, b: int) -> int:
    return DIGIT0 + (a + b) % 10


def score(completion: torch.Tensor, a: int, b: int) -> float:
    r = 0.0
    if completion[0].item() == target_token(a, b):
        r += 1.0
    if completion.numel() > 1 and completion[1].item() == EOS:
        r += 0.1
    return r


def build_prompts(n: int, seed: int) -> list[tuple[int, int]]:
    g = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, 10, (n, 2), generator=g)
    return [tuple(p) for p in pairs.tolist()]
