"""`python -m steptime.cli`: the command line where no `steptime` script is on the path."""

from steptime.cli import main

main()
