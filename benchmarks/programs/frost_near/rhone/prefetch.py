import queue
from concurrent.futures import ThreadPoolExecutor


class ThreadedBatches:
    """Reads the samples of the coming batches on a thread pool while the current one is used."""

    def __init__(self, dataset, sampler, batch_size, collate, threads=8, ahead=4):
        self.dataset, self.sampler, self.collate = dataset, sampler, collate
        self.batch_size, self.ahead = batch_size, ahead
        self.pool = ThreadPoolExecutor(threads)

    def __len__(self):
        return len(self.sampler) // self.batch_size

    def _index_lists(self):
        chunk = []
        for i in self.sampler:
            chunk.append(i)
            if len(chunk) == self.batch_size:
                yield chunk
                chunk = []

    def __iter__(self):
        waiting = queue.Queue()
        lists = self._index_lists()

        def submit():
            chunk = next(lists, None)
            if chunk is not None:
                waiting.put([self.pool.submit(self.dataset.__getitem__, i) for i in chunk])

        for _ in range(self.ahead):
            submit()
        while not waiting.empty():
            futures = waiting.get()
            submit()
            yield self.collate([f.result() for f in futures])

    def close(self):
        self.pool.shutdown()
