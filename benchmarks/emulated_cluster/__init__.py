"""A cluster on one machine: hosts as network namespaces, joined by links of a given rate, running MPI over TCP.

    with Cluster(hosts=8, rate="1gbit", groups=2, trunk="250mbit") as cluster:
        print(cluster.check())
        outcome = cluster.run(["python", "program.py"], ranks=8, placement="round-robin")

`namespaces` makes the hosts, `links` the network between them, `delay` its latency, `placement` and `job` decide what
MPI is told, `rates` and `probe` measure links, `cluster` is all of it together, `command` its command line.
"""

from emulated_cluster.cluster import Cluster, Outcome
from emulated_cluster.namespaces import end_leftovers, reason_against
from emulated_cluster.rates import Rate

__all__ = ["Cluster", "Outcome", "Rate", "end_leftovers", "reason_against"]
