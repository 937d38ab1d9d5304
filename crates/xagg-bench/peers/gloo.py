"""A rank of gloo at the benchmark's service: see src/control.rs for what is said."""

import socket
import sys
import time

import numpy
import torch
import torch.distributed


def integers(rank, length):
    """The values of a rank, as in xagg_testbed::exact."""
    index = numpy.arange(length, dtype=numpy.int64)
    return torch.from_numpy(((index * 31 + rank * 17) % 2001 - 1000).astype(numpy.float32))


def main():
    path, rank, workers, rendezvous = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=workers)
    control = socket.socket(socket.AF_UNIX)
    control.connect(path)
    lines = control.makefile("rw")

    def say(text):
        lines.write(text + "\n")
        lines.flush()

    say(f"rank {rank}")
    values = torch.zeros(0)
    for line in lines:
        word, _, number = line.strip().partition(" ")
        if word == "fill":
            values = integers(rank, int(number))
            say("ready")
        elif word == "go":
            begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            for _ in range(int(number)):
                torch.distributed.all_reduce(values)
            say(f"{begin} {time.clock_gettime_ns(time.CLOCK_MONOTONIC)}")
        elif word == "check":
            exact = sum(integers(other, len(values)) for other in range(workers))
            say("exact" if torch.equal(values, exact) else "wrong")
        elif word == "count":
            say("-")
        elif word == "end":
            say("-")
            return


main()
