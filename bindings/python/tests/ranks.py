"""What the processes of the tests do: `ranks.py PROGRAM JOB RANK ARGUMENTS...` calls the function of that name."""

import hashlib
import json
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import xagg.torch

LENGTHS = [1, 351, 352, 353, 10_000, 100_000]


def tell(**finding):
    print(json.dumps(finding), flush=True)


def values(rank, length):
    """Whole numbers, so that every order of adding them gives the same sum."""
    generator = torch.Generator().manual_seed(1000 * rank + length)
    return torch.randint(-1000, 1001, (length,), generator=generator).float()


def sums(job, rank, workers):
    """All operations in flight at the same time, of tensors of several shapes."""
    with xagg.torch.connect(job, rank) as group:
        pending = [(length, group.all_reduce(values(rank, length))) for length in LENGTHS]
        pending.append((600, group.all_reduce(values(rank, 600).reshape(2, 30, 10))))
        for length, future in pending:
            expected = sum(values(other, length) for other in range(int(workers)))
            assert torch.equal(future.wait().flatten(), expected), f"length {length}"
        stats = group.stats()
        assert stats["operations"] == len(pending), stats
        tell(operations=stats["operations"])


def means(job, rank):
    """The weight of rank r is r + 1, its values are its samples' sum."""
    with xagg.torch.connect(pathlib.Path(job), rank) as group:
        tensor = torch.full((10,), 6.0 * (rank + 1))
        result = group.all_reduce(tensor, op="mean", weight=rank + 1).wait()
        assert result.data_ptr() == tensor.data_ptr(), "in place"
        tell(mean=tensor.tolist())


def late(job, rank):
    """Rank 1 comes a second late; rank 0 asks meanwhile whom it waits for."""
    with xagg.torch.connect(job, rank) as group:
        if rank == 1:
            time.sleep(1)
        future = group.all_reduce(torch.ones(1000))
        named = []
        while not future.done():
            named = group.waiting_for() or named
            time.sleep(0.01)
        future.wait()
        tell(named=named, waiting_for=group.waiting_for(), waited_for=group.waited_for())


def mismatch(job, rank):
    with xagg.torch.connect(job, rank) as group:
        future = group.all_reduce(torch.ones(1000 + rank))
        try:
            future.wait()
        except xagg.XaggError as error:
            tell(error=str(error))


def alone(job, rank):
    """One operation that the other rank never joins."""
    with xagg.torch.connect(job, rank) as group:
        future = group.all_reduce(torch.ones(1000))
        tell(waiting=True)
        try:
            future.wait()
        except xagg.XaggError as error:
            tell(error=str(error))
        try:
            group.all_reduce(torch.ones(1000)).wait()
        except xagg.XaggError as error:
            tell(error=str(error))


def joining(job, rank):
    """Interrupted while it waits for an aggregator that is not there."""
    # Ignored in what a shell starts in the background, and so in the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tell(joining=True)
    try:
        xagg.torch.connect(job, rank)
    except KeyboardInterrupt:
        tell(interrupted=True)


def leaving(job, rank):
    """Ends in the middle of an operation, without closing."""
    group = xagg.torch.connect(job, rank)
    future = group.all_reduce(torch.ones(1000))
    tell(group=str(group), done=future.done())


def forking(job, rank):
    """A child has the object, but is not the rank."""
    group = xagg.torch.connect(job, rank)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            group.all_reduce(torch.ones(10))
        except xagg.XaggError as error:
            tell(error=str(error))
        group.close()
        del group
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    tell(child=status, sum=group.all_reduce(torch.ones(10)).wait().tolist())


class _Training:
    """A small model with several buckets, and data that differ by rank."""

    def __init__(self, rank, workers, rendezvous):
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=workers)
        torch.set_num_threads(1)
        torch.manual_seed(1)
        # Whatever bucket_cap_mb says, DDP's first bucket takes 1 MiB: the last two layers.
        layers = [nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)]
        self.model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.01)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self._generator = torch.Generator().manual_seed(rank)

    def step(self):
        inputs = torch.randn(32, 20, generator=self._generator)
        loss = nn.functional.mse_loss(self.model(inputs), inputs[:, :1].sin())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def digest(self):
        state = hashlib.sha256()
        for parameter in self.model.parameters():
            state.update(parameter.detach().numpy().tobytes())
        return state.hexdigest()


def train(job, rank, backend, workers, rendezvous):
    training = _Training(rank, int(workers), rendezvous)
    group = xagg.torch.connect(job, rank) if backend == "xagg" else None
    if group is not None:
        training.model.register_comm_hook(group, xagg.torch.all_reduce_hook)
    losses = [training.step() for _ in range(30)]
    if group is not None:
        group.close()
    tell(losses=losses, digest=training.digest())


def overlap(job, rank, rendezvous):
    """Rank 1 contributes nothing before rank 0 has seen all of its buckets: fails if the hook waits for the sum."""
    training = _Training(rank, 2, rendezvous)
    all_seen = pathlib.Path(f"{rendezvous}.seen")
    buckets = []

    def hook(group, bucket):
        deadline = time.monotonic() + 20
        while rank == 1 and not all_seen.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert rank == 0 or all_seen.exists(), "rank 0 waits in its hook"
        future = xagg.torch.all_reduce_hook(group, bucket)
        buckets.append(bucket.index())
        if rank == 0 and bucket.is_last():
            all_seen.touch()
        return future

    with xagg.torch.connect(job, rank) as group:
        training.model.register_comm_hook(group, hook)
        training.step()
        # DDP makes its buckets in the order of the first backward, which has but one.
        dist.barrier()
        all_seen.unlink(missing_ok=True)
        buckets.clear()
        dist.barrier()
        training.step()
    tell(buckets=buckets)


def refused(job, rank, rendezvous):
    """What is wrong when the hook is called, not later."""
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=1)
    group = xagg.torch.connect(job, rank)
    for close, dtype in [(False, torch.float64), (True, torch.float32)]:
        model = DistributedDataParallel(nn.Linear(4, 1).to(dtype))
        model.register_comm_hook(group, xagg.torch.all_reduce_hook)
        if close:
            group.close()
        try:
            model(torch.ones(2, 4, dtype=dtype)).sum().backward()
        except (TypeError, xagg.XaggError) as error:
            tell(kind=type(error).__name__, error=str(error))


def train_on(job, rank, workers, rendezvous):
    """Until the job fails."""
    training = _Training(rank, int(workers), rendezvous)
    group = xagg.torch.connect(job, rank)
    training.model.register_comm_hook(group, xagg.torch.all_reduce_hook)
    deadline = time.monotonic() + 60
    try:
        for step in range(1_000_000):
            training.step()
            if step == 3:
                tell(trains=True)
            assert time.monotonic() < deadline, "the job does not fail"
    except xagg.XaggError as error:
        tell(error=str(error))
    # Without the usual farewell: the other ranks of the gloo group end at times of their own.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _, program, job_path, own_rank, *rest = sys.argv
    globals()[program](job_path, int(own_rank), *rest)
