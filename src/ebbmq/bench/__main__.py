"""`python -m ebbmq.bench`: the same as `ebbmq bench`."""

from ebbmq.bench.command import bench

if __name__ == "__main__":
    bench()
