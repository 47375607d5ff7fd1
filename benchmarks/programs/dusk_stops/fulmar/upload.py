import logging
import os
import time

import torch

log = logging.getLogger("upload")


class Bucket:
    """Local stand-in for the object store; as the real one it answers 503 now and then."""

    def __init__(self, root):
        self.root = root
        self.calls = 0
        os.makedirs(root, exist_ok=True)

    def put(self, key, obj):
        self.calls += 1
        if self.calls in (1, 2, 3):
            raise ConnectionError("503 slow down")
        path = os.path.join(self.root, key)
        torch.save(obj, path + ".tmp")
        os.replace(path + ".tmp", path)


def upload_with_retry(bucket, key, obj, tries=5, delay=2.0):
    for n in range(tries):
        try:
            bucket.put(key, obj)
            log.info("uploaded %s", key)
            return
        except ConnectionError as err:
            wait = delay * 2 ** n
            log.warning("%s: %s, next try in %.0f s", key, err, wait)
            time.sleep(wait)
    raise RuntimeError(f"could not upload {key}")
