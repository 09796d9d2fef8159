"""Describe the machine: processors, kernel, versions, load, and the speed of disk and processor without any broker.

The speeds explain the other figures. An append that is fsynced before its acknowledgement is never faster than the disk, and other
virtual machines on the same host can slow the processor.
"""

import os
import platform
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("raftmq", "grpcio", "lmdb", "protobuf", "uvloop", "cramjam")


@dataclass(frozen=True, slots=True)
class DiskFigures:
    """Hold the speed of consecutive `O_DSYNC` writes of one process, in the place where a run's brokers have their data."""

    small_ms: float
    """Median of 4 KiB writes."""
    small_ms_max: float
    large_megabytes_per_second: float
    """Rate of 1 MiB writes, by their median."""

    def __str__(self) -> str:
        return (
            f"4 KiB in {self.small_ms:.2f} ms (slowest {self.small_ms_max:.2f}), "
            f"1 MiB at {self.large_megabytes_per_second:,.0f} MB/s"
        )


def probe_disk(small_writes: int = 200, large_writes: int = 30) -> DiskFigures:
    """Measure writes to a temporary file, which is then removed."""
    small = _write_seconds(4096, small_writes)
    large = _write_seconds(2**20, large_writes)
    return DiskFigures(
        small_ms=statistics.median(small) * 1000,
        small_ms_max=max(small) * 1000,
        large_megabytes_per_second=2**20 / 1e6 / statistics.median(large),
    )


def _write_seconds(size: int, writes: int) -> list[float]:
    block = os.urandom(size)
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-disk-") as directory:
        file = os.open(Path(directory) / "probe", os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o600)
        try:
            times = []
            for _ in range(writes):
                started = time.perf_counter()
                os.write(file, block)
                times.append(time.perf_counter() - started)
            return times
        finally:
            os.close(file)


def probe_processor() -> float:
    """Return the milliseconds for one million rounds of a plain Python loop, the best of three. Only the machine varies it."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        total = 0
        for value in range(1_000_000):
            total += value
        best = min(best, time.perf_counter() - started)
    return best * 1000


def load_average() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def facts(disk: DiskFigures) -> dict[str, object]:
    """Return the machine's facts for the JSON, without its name or address."""
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpus": os.cpu_count(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: version(name) for name in PACKAGES},
        "load_average": load_average(),
        "disk": asdict(disk),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
