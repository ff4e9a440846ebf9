"""The machine that a world runs on, measured once and kept: later runs decide alike, and at once."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path

from hybridmpi.errors import UsageError
from hybridmpi.folders import cache_folder, read_json, write_json
from hybridmpi.planning.machine import Machine
from hybridmpi.world import World

# Of the meaning of what is kept: another one's files are not read.
VERSION = 1


def known_machine(world: World, measure: Callable[[World], Machine], folder: Path | None = None) -> Machine:
    """Return the machine of `world`, as an earlier run on the same hosts, ranks and MPI has kept it in `folder`, else
    by `measure`; the same on every rank. Collective over compute."""
    hosts = world.gather(socket.gethostname())
    library = world.mpi.Get_library_version().split("\0")[0]
    identity = json.dumps([VERSION, library, hosts, world.node_of, world.servers])
    name = f"machine-{blake2b(identity.encode(), digest_size=12).hexdigest()}.json"
    file = (folder or cache_folder()) / name

    def read() -> Machine | None:
        kept = read_json(file)
        try:
            return Machine(**{key: tuple(v) if isinstance(v, list) else v for key, v in kept.items()})
        except (AttributeError, TypeError, UsageError):
            return None

    if (machine := world.from_root(read)) is None:
        machine = measure(world)
        world.from_root(lambda: write_json(file, asdict(machine)))
    return machine
