import logging
import sys

import torch
import torch.distributed as dist

from actor import Actor
from learner import Learner
from schedule import Chore, ChoreBoard
from settings import Settings, load_settings

log = logging.getLogger("ussuri")


class Job:
    """Ranks 0..n-2 learn, the last rank plays episodes with the newest policy it was sent."""

    def __init__(self, cfg: Settings):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.learners = list(range(self.world - 1))
        self.is_actor = self.rank == self.world - 1
        self.learn_group = dist.new_group(self.learners)
        self.policy_group = dist.new_group(list(range(self.world)))
        self.stats_group = dist.new_group(list(range(self.world)))
        side = Actor(cfg) if self.is_actor else Learner(cfg, self.rank, len(self.learners), self.learn_group)
        self.side = side
        self.totals = torch.zeros(3)
        self.board = ChoreBoard(
            [
                Chore("policy", cfg.policy_every, self.send_policy, urgency=lambda: 1.0),
                Chore("stats", cfg.stats_every, self.sum_stats, urgency=lambda: side.backlog()),
            ]
        )

    def send_policy(self):
        for p in self.side.policy.parameters():
            dist.broadcast(p.data, src=0, group=self.policy_group)

    def sum_stats(self):
        row = self.side.drain()
        dist.all_reduce(row, group=self.stats_group)
        self.totals += row

    def run(self):
        for it in range(1, self.cfg.iterations + 1):
            self.side.work(it)
            self.board.tick(it)
            if self.rank == 0 and it % self.cfg.log_every == 0:
                n = max(1.0, self.totals[0].item())
                log.info("iteration %d episodes %d return %.2f loss %.3f", it, n, self.totals[1] / n, self.totals[2] / it)


def main():
    cfg = load_settings(sys.argv[1:])
    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO, format=f"{dist.get_rank()}| %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(cfg.seed)
    job = Job(cfg)
    job.run()
    dist.barrier()
    if job.rank == 0:
        log.info("done after %d iterations", cfg.iterations)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
