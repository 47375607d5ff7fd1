import numpy as np


class Compose:
    def __init__(self, *ops):
        self.ops = ops

    def __call__(self, cloud, rng):
        for op in self.ops:
            cloud = op(cloud, rng)
        return cloud


def rotate(cloud, rng):
    a = rng.uniform(-np.pi, np.pi)
    c, s = np.cos(a), np.sin(a)
    out = cloud.copy()
    out[:, 0], out[:, 1] = c * cloud[:, 0] - s * cloud[:, 1], s * cloud[:, 0] + c * cloud[:, 1]
    return out


def scale(cloud, rng):
    return cloud * rng.uniform(0.9, 1.1)


def jitter(cloud, rng):
    return cloud + rng.normal(0, 0.02, cloud.shape)


def drop_points(cloud, rng):
    keep = rng.permutation(len(cloud))[:48]
    return cloud[keep]
