"""Looking into checkpoints, without MPI: what `hybridmpi inspect` shows. Values are read only where they are asked for.

Each module has a function that finds something out and returns it as plain data, what `--json` prints, and `render`,
which makes text for people of that.
"""
