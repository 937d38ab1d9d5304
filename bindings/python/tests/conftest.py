"""Real aggregators and real ranks, as processes, over loopback with the udp datapath."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

_FIRST_PORT = 20_000
_jobs = itertools.count()


@pytest.fixture(scope="session")
def xagg_bin():
    """The path of the `xagg` command."""
    path = os.environ.get("XAGG_BIN")
    if path is None or not os.access(path, os.X_OK):
        pytest.exit(f"XAGG_BIN must be the path of the xagg command, not {path!r}: run `cargo xtask test`", returncode=1)
    return path


class Cluster:
    """Starts the processes of jobs and ends what is left of them."""

    def __init__(self, xagg_bin, folder):
        self._xagg_bin = xagg_bin
        self.folder = folder
        self._processes = []

    def job(self, workers, *, timeout=10, elements=500_000):
        """A job file whose addresses nobody else has."""
        number = next(_jobs)
        # All of 127.0.0.0/8 is this machine: every test process has an address of its own, every job ports of its own.
        host = f"127.{os.getpid() // 250 % 250 + 2}.{os.getpid() % 250 + 2}.2"
        first = _FIRST_PORT + 32 * number
        addresses = [f"{host}:{first + rank}" for rank in range(workers + 1)]
        command = [self._xagg_bin, "job", "--workers", ",".join(addresses[1:]), "--aggregator", addresses[0]]
        command += ["--elements", str(elements), "--timeout", str(timeout)]
        path = self.folder / f"job{number}.toml"
        path.write_bytes(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=30).stdout)
        return path

    def aggregator(self, job):
        """A running aggregator of the job."""
        command = [self._xagg_bin, "aggregator", "--datapath", "udp", "--job", str(job)]
        process = self._start(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().startswith("ready:"), "the aggregator did not start"
        return process

    def rank(self, program, job, rank, *arguments):
        """A process that runs a function of ranks.py and prints a line of JSON for each of its findings."""
        script = pathlib.Path(__file__).with_name("ranks.py")
        command = [sys.executable, str(script), program, str(job), str(rank), *map(str, arguments)]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        return self._start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def ranks(self, program, job, workers, *arguments):
        """All ranks of a job, and what each of them printed once all have ended well."""
        processes = [self.rank(program, job, rank, *arguments) for rank in range(workers)]
        return [findings(process) for process in processes]

    def _start(self, command, **options):
        process = subprocess.Popen(command, **options)
        self._processes.append(process)
        return process

    def close(self):
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


def findings(process, timeout=90):
    """What a rank printed; fails unless it ends well."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, f"exit code {process.returncode}:\n{out}{err}"
    return [json.loads(line) for line in out.splitlines()]


def wait_for(condition, what, seconds=30):
    """Waits until the condition holds; fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)


@pytest.fixture
def cluster(xagg_bin, tmp_path):
    """See `Cluster`."""
    cluster = Cluster(xagg_bin, tmp_path)
    yield cluster
    cluster.close()
