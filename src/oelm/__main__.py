"""python -m oelm equals oelm."""

import sys


def main() -> None:
    try:
        from oelm.cli import main as run
    except KeyboardInterrupt:  # in the first tenths of a second, before there is anyone to meet it
        print("oelm: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
