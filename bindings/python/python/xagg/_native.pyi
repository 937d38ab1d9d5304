"""The native half of the package: see src/lib.rs. Use `xagg.torch` instead."""

from os import PathLike
from typing import Any, Literal, Union, final

__VERSION__: str

class XaggError(RuntimeError):
    """A job cannot be joined or cannot go on; the text says what is wrong and what to do."""

@final
class Client:
    """A rank that has joined its job."""

    def __new__(cls, job: Union[str, PathLike[str]], rank: int) -> Client:
        """Joins the job that the file describes; waits at most for the job's timeout."""
    def all_reduce(
        self, owner: Any, pointer: int, length: int, reduction: Literal["sum", "mean"], weight: int
    ) -> None:
        """Begins an all-reduce, in place, of `length` f32 values at `pointer`, which belong to `owner` and which nobody
        else may touch until `next_completion` gives `owner` back."""
    def next_completion(self) -> tuple[Any, XaggError | None] | None:
        """Waits for the next operation to end: its owner and, if it failed, the error. None once the client is closed and
        everything has ended."""
    def stats(self) -> dict[str, int]:
        """The counters of this rank."""
    def close(self) -> None:
        """Leaves the job; what is in progress fails. Does nothing if done before."""
