"""The command line: one file per command, loaded by `main` when it is asked for."""
