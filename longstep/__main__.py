"""`python -m longstep` is the same command as `longstep`."""

from longstep.cli import main

main()
