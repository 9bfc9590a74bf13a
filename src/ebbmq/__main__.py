"""`python -m ebbmq`: the same as `ebbmq`."""

from ebbmq.cli.main import main

if __name__ == "__main__":
    main()
