#!/bin/sh
# What mpirun and mpiexec start in place of ssh: agent.sh [OPTIONS] HOST WORDS...
# Runs the words on another host of the cluster, joined as ssh joins them. EMULATED_CLUSTER holds "n1=PID n2=PID ...".
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
for entry in $EMULATED_CLUSTER; do
  [ "${entry%%=*}" != "$host" ] ||
    exec nsenter --target "${entry#*=}" --mount --net --uts env --chdir="$PWD" sh -c "$*"
done
echo "agent.sh: no host '$host' in this cluster: $EMULATED_CLUSTER" >&2
exit 255
