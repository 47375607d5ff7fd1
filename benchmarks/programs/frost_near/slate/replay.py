from collections import OrderedDict, deque

import torch


class Replay:
    """Keeps the newest transitions; the frames are stored as they come."""

    def __init__(self, capacity):
        self.items = deque(maxlen=capacity)

    def extend(self, frames, actions, rewards, nexts):
        self.items.extend(zip(frames.unbind(0), actions.tolist(), rewards.tolist(), nexts.unbind(0)))

    def sample(self, n, g):
        pick = torch.randint(0, len(self.items), (n,), generator=g).tolist()
        f, a, r, s = zip(*(self.items[i] for i in pick))
        return torch.stack(f), torch.tensor(a), torch.tensor(r), torch.stack(s)

    def __len__(self):
        return len(self.items)


class FrameCache:
    """Least recently used rendered backgrounds."""

    def __init__(self, size):
        self.size, self.store = size, OrderedDict()

    def get(self, key, render):
        if key in self.store:
            self.store.move_to_end(key)
        else:
            self.store[key] = render(key)
            if len(self.store) > self.size:
                self.store.popitem(last=False)
        return self.store[key]
