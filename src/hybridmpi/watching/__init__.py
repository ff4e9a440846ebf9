"""Reading, watching and drawing the metrics of runs, also while they are written. Needs no MPI.

`reading.read_metrics(path)` returns a `history.History`: what a run has written so far, in bounded memory.
"""
