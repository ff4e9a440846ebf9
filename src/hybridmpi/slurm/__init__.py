"""Batch jobs of Slurm: from a job file and what is asked of the cluster to one batch script."""
