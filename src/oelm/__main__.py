"""python -m oelm equals oelm."""

from oelm.cli import main

if __name__ == "__main__":
    main()
