import logging
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from roles import Roles

log = logging.getLogger("krishna")


class Config(dict):
    __getattr__ = dict.__getitem__


CFG = Config(
    vocab=64, dim=48, length=24, batch=16, teacher_steps=160, student_steps=100, lr=4e-3, seed=27, temperature=2.0
)


class Tiny(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, layers, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


class ChainText:
    """Markov chain over the vocabulary; each rank samples its own walk."""

    def __init__(self, cfg, stream):
        rule = torch.Generator().manual_seed(cfg.seed)
        self.next = torch.randint(0, cfg.vocab, (cfg.vocab, 3), generator=rule)
        self.g = torch.Generator().manual_seed(cfg.seed * 1000 + stream)
        self.cfg = cfg

    def batch(self):
        n, length = self.cfg.batch, self.cfg.length
        ids = torch.empty(n, length + 1, dtype=torch.long)
        ids[:, 0] = torch.randint(0, self.cfg.vocab, (n,), generator=self.g)
        pick = (torch.rand(n, length, generator=self.g) ** 2 * 3).long()
        for t in range(length):
            ids[:, t + 1] = self.next[ids[:, t], pick[:, t]]
        return ids[:, :-1], ids[:, 1:]


def averaged_step(model, opt, loss, group, size):
    opt.zero_grad()
    loss.backward()
    flat = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
    dist.all_reduce(flat, group=group)
    nn.utils.vector_to_parameters(flat / size, [p.grad for p in model.parameters()])
    opt.step()


def train_teacher(cfg, roles):
    """Only the teacher ranks work here, the others have nothing to do until the weights come."""
    torch.manual_seed(cfg.seed)
    teacher = Tiny(cfg.vocab, cfg.dim, 2)
    if roles.is_teacher:
        opt = torch.optim.Adam(teacher.parameters(), lr=cfg.lr)
        text = ChainText(cfg, roles.rank)
        for step in range(1, cfg.teacher_steps + 1):
            x, y = text.batch()
            loss = F.cross_entropy(teacher(x).flatten(0, 1), y.flatten())
            averaged_step(teacher, opt, loss, roles.teachers, roles.teacher_count)
            if roles.rank == 0 and step % 40 == 0:
                log.info("teacher step %d loss %.4f", step, loss.item())
    dist.monitored_barrier(timeout=timedelta(minutes=10), wait_all_ranks=True)
    for p in teacher.parameters():
        dist.broadcast(p.data, src=0)
    return teacher.requires_grad_(False).eval()


def distil(cfg, roles, teacher):
    torch.manual_seed(cfg.seed + 1)
    student = Tiny(cfg.vocab, cfg.dim // 2, 1)
    opt = torch.optim.Adam(student.parameters(), lr=cfg.lr)
    text = ChainText(cfg, 100 + roles.rank)
    for step in range(1, cfg.student_steps + 1):
        x, y = text.batch()
        with torch.no_grad():
            soft = (teacher(x) / cfg.temperature).softmax(-1)
        logits = student(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) + cfg.temperature**2 * F.kl_div(
            (logits / cfg.temperature).log_softmax(-1), soft, reduction="none"
        ).sum(-1).mean()
        averaged_step(student, opt, loss, None, roles.world)
        if roles.rank == 0 and step % 25 == 0:
            log.info("student step %d loss %.4f", step, loss.item())
    return student


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    roles = Roles()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {roles.name}{roles.rank} %(message)s")
    teacher = train_teacher(CFG, roles)
    student = distil(CFG, roles, teacher)
    for label, model in (("teacher", teacher), ("student", student)):
        log.info("%s %.8f", label, sum(float(p.detach().double().sum()) for p in model.parameters()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
