import torch
import torch.nn.functional as F

IGNORE = -100


def shift(logits, labels):
    return logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1)


def kd_sum(student_logits, teacher_logits, labels, temperature: float) -> torch.Tensor:
    """Sum over target tokens of KL(teacher || student) at a temperature."""
    s, y = shift(student_logits, labels)
    t, _ = shift(teacher_logits, labels)
    keep = y != IGNORE
    s, t = s[keep] / temperature, t[keep] / temperature
    kl = F.kl_div(s.log_softmax(-1), t.log_softmax(-1), log_target=True, reduction="sum")
    return kl * temperature ** 2


def ce_sum(student_logits, labels) -> torch.Tensor:
    s, y = shift(student_logits, labels)
    return F.cross_entropy(s, y, ignore_index=IGNORE, reduction="sum")


def count_targets(labels) -> torch.Tensor:
    return (labels[:, 1:] != IGNORE).sum()
