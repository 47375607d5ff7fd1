import copy
import logging
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from env import CorridorEnv

log = logging.getLogger("impala.actors")


class EpisodeStats:
    """Running figures of the finished episodes of one rank."""

    def __init__(self):
        self.lock = threading.Lock()
        self.returns, self.rates = [], []

    def add(self, ret, info, optimal):
        self.lock.acquire()
        self.returns.append(ret)
        self.rates.append(info["hits"] / optimal(info["steps"]))
        self.lock.release()

    def pop(self):
        self.lock.acquire()
        r = (sum(self.returns), sum(self.rates), len(self.returns))
        self.returns, self.rates = [], []
        self.lock.release()
        return r


class ActorPool:
    """Threads which roll the current policy out and fill `self.full` with unrolls."""

    def __init__(self, model, cfg, rank):
        self.cfg, self.rank = cfg, rank
        self.policy = copy.deepcopy(model)
        self.policy_lock = threading.Lock()
        self.full = queue.Queue(maxsize=2 * cfg["batch"])
        self.stats = EpisodeStats()
        self.closing = threading.Event()
        self.pool = ThreadPoolExecutor(cfg["actors"], thread_name_prefix="actor")
        self.running = [self.pool.submit(self._act, i) for i in range(cfg["actors"])]

    def publish(self, model):
        with self.policy_lock:
            self.policy.load_state_dict(model.state_dict())

    def optimal_hits(self, steps):
        return steps // self.cfg["mean_distance"]

    def _act(self, i):
        torch.set_num_threads(1)
        index = self.rank * self.cfg["actors"] + i
        env = CorridorEnv(seed=1000 + index, length=self.cfg["lengths"][index % len(self.cfg["lengths"])],
                          horizon=self.cfg["horizon"])
        gen = torch.Generator().manual_seed(77 + index)
        obs, ret = env.reset(), 0.0
        while not self.closing.is_set():
            traj = {k: [] for k in ("obs", "action", "logp", "reward", "done")}
            for _ in range(self.cfg["unroll"]):
                with torch.no_grad(), self.policy_lock:
                    logits, _ = self.policy(torch.from_numpy(obs))
                lp = torch.log_softmax(logits, -1)
                a = int(torch.multinomial(lp.exp(), 1, generator=gen))
                traj["obs"].append(obs)
                traj["action"].append(a)
                traj["logp"].append(float(lp[a]))
                obs, r, done, info = env.step(a)
                ret += r
                traj["reward"].append(r)
                traj["done"].append(float(done))
                if done:
                    self.stats.add(ret, info, self.optimal_hits)
                    obs, ret = env.reset(), 0.0
            traj["obs"].append(obs)
            self._put({k: torch.as_tensor(np.asarray(v)) for k, v in traj.items()})

    def _put(self, item):
        while not self.closing.is_set():
            try:
                return self.full.put(item, timeout=0.2)
            except queue.Full:
                continue

    def next_batch(self):
        items = [self.full.get() for _ in range(self.cfg["batch"])]
        return {k: torch.stack([it[k] for it in items], 1) for k in items[0]}

    def close(self):
        self.closing.set()
        self.pool.shutdown(wait=True)
