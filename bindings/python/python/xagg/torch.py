"""XAgg for PyTorch: an all-reduce of float32 CPU tensors, and a communication hook for DistributedDataParallel.

Example, on every rank::

    import xagg.torch

    with xagg.torch.connect("job.toml", rank) as group:
        gradient = torch.ones(1_000_000)
        group.all_reduce(gradient).wait()  # now holds the sum over all ranks
"""

import logging
import os
import threading
import weakref
from typing import Literal, Union

import torch
import torch.distributed

from ._native import Client

__all__ = ["Group", "all_reduce_hook", "connect"]

_log = logging.getLogger(__name__)


def connect(job: Union[str, "os.PathLike[str]"], rank: int) -> "Group":
    """Joins a job as one of its ranks.

    Args:
        job: the path of the job file, the same on all ranks and at the aggregator (`xagg job` writes one).
        rank: which worker of the job this process is, from 0.

    Raises:
        xagg.XaggError: the job file is wrong, or the aggregator does not answer within the job's timeout, or it refuses.
        ValueError: the rank is negative.
    """
    return Group(Client(job, rank))


class Group:
    """One rank's membership of a job. Made by `connect`; a context manager that closes itself.

    All ranks must issue the same operations, of the same lengths, in the same order. Any number may be in progress.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        thread = threading.Thread(target=_deliver, args=(client,), name="xagg-completions", daemon=True)
        # Also runs when the group is garbage, and before the interpreter ends, which no thread may outlive.
        self._leave = weakref.finalize(self, _leave, client, thread, os.getpid())
        thread.start()

    def all_reduce(
        self, tensor: torch.Tensor, op: Literal["sum", "mean"] = "sum", weight: int = 1
    ) -> torch.futures.Future[torch.Tensor]:
        """Begins an all-reduce in place and returns at once.

        Args:
            tensor: any shape; float32, on the CPU, contiguous, not empty. Leave it alone until the future is done.
            op: "sum", or "mean": the sum divided by the sum of the ranks' weights.
            weight: 1 to 65535; says nothing with "sum". Where ranks have batches of different sizes, let the tensor be the
                gradient summed over the batch, and the weight the size of the batch: the mean is then over all samples.

        Returns:
            A future of the same tensor, which then holds the result, the same bits on every rank. If the job fails, `wait()`
            raises `xagg.XaggError` within the job's timeout; the tensor's values are undefined then.

        Raises:
            TypeError, ValueError: the tensor, op or weight is not one of the above.
            xagg.XaggError: the group is closed.
        """
        _check(tensor)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._client.all_reduce((future, tensor), tensor.data_ptr(), tensor.numel(), op, weight)
        return future

    def stats(self) -> dict[str, int]:
        """What this rank has counted since it joined: packets, bytes, retransmissions, ...

        Raises:
            xagg.XaggError: the group is closed.
        """
        return self._client.stats()

    def waiting_for(self) -> list[int]:
        """The ranks that this one waits for now: it has pushed everything, and they have not. Empty if that is not so or not known yet.

        Raises:
            xagg.XaggError: the group is closed.
        """
        return self._client.waits()[0]

    def waited_for(self) -> dict[int, float]:
        """For how many seconds this rank has waited for which others since it joined, with nothing left to push.

        Times overlap where several ranks were missing. Waits shorter than 50 ms are left out.

        Raises:
            xagg.XaggError: the group is closed.
        """
        return self._client.waits()[1]

    def close(self) -> None:
        """Leaves the job; operations in progress fail. May be called again."""
        self._leave()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def all_reduce_hook(group: Group, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages the gradients of a bucket over all ranks while backward goes on with the next one.

    What goes wrong surfaces from `backward()`: a failure of the job as `xagg.XaggError`, gradients that are not supported (see
    `Group.all_reduce`) as `TypeError`.

    Example::

        model = DistributedDataParallel(model)
        model.register_comm_hook(group, xagg.torch.all_reduce_hook)
    """
    try:
        future = group.all_reduce(bucket.buffer(), "mean")
    except Exception as error:
        # Raised from here it would come out of backward as a RuntimeError.
        future = torch.futures.Future()
        future.set_exception(error)
    # DDP itself does not look for exceptions in a hook's future. What is queued here runs at the end of backward, before
    # DDP uses the bucket, and raises what the future raises.
    torch.autograd.Variable._execution_engine.queue_callback(future.wait)
    return future


def _check(tensor: torch.Tensor) -> None:
    """Raises unless XAgg can sum the tensor in place."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"all_reduce needs a torch.Tensor, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"all_reduce supports dense tensors, not {tensor.layout}: use tensor.to_dense()")
    if tensor.dtype != torch.float32:
        raise TypeError(f"all_reduce supports torch.float32, not {tensor.dtype}: use tensor.float()")
    if tensor.device.type != "cpu":
        raise TypeError(f"all_reduce supports tensors on the CPU, not on {tensor.device}: use tensor.cpu()")
    if tensor.numel() == 0:
        raise ValueError("all_reduce needs at least one value, this tensor is empty: leave it out on every rank")
    if not tensor.is_contiguous():
        raise ValueError("all_reduce works in place on contiguous tensors: use tensor.contiguous() and copy the result back")


def _deliver(client: Client) -> None:
    """Sets the futures of operations that have ended, until the client is closed."""
    while True:
        completion = client.next_completion()
        if completion is None:
            return
        (future, tensor), error = completion
        try:
            if error is None:
                future.set_result(tensor)
            else:
                future.set_exception(error)
        except Exception:
            # A future that its owner has already set must not stop the delivery of all others.
            _log.exception("cannot set the future of an all-reduce")
        # Keeps nothing alive while it waits.
        del completion, future, tensor, error


def _leave(client: Client, thread: threading.Thread, process: int) -> None:
    """Closes the client and waits until every future is set."""
    client.close()
    # A child made by fork has the object, but not the thread; and a future's callback may be what lets go of the group.
    if process == os.getpid() and thread is not threading.current_thread():
        thread.join()
