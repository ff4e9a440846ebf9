"""What each way of a gradient costs: bytes by phase and by link, messages, and work of ranks and owners.

Ways: "ps" (parameter servers: values lie at their owners, ranks pull what they need and push gradients), "allreduce"
(every compute rank has a copy, gradients are summed as dense arrays), "allgather" (copies; ids and values of all ranks'
rows go to all). Table 2 of Parallax (arXiv 1808.02621) for unequal nodes, with row ids, headers, messages and work.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.planning.machine import Machine, NodeKinds
from hybridmpi.planning.modes import Way
from hybridmpi.planning.traffic import aggregate, pulled_together
from hybridmpi.planning.workload import Dense, Sparse, Touched
from hybridmpi.sparse.node_memory import sharers_of
from hybridmpi.sparse.node_sum import Aggregate, sums_rows
from hybridmpi.sparse.norms import SCALAR_BYTES
from hybridmpi.sparse.requests import PIECE_HEAD, REPLY_HEAD, REQUEST_HEAD
from hybridmpi.sparse.wire import HEADER_BYTES, ID_BYTES, PIECE_BYTES

WAYS: tuple[Way, ...] = ("ps", "allreduce", "allgather")

# In the order of a step.
PHASES = ("pull", "local", "push", "server", "allreduce", "allgather", "clip", "update")

BYTES_ON_WIRE = {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5}


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How gradients travel. `local`: rows of a node's ranks are summed before they are pushed; `together`: what a
    node's ranks want of tables on other nodes is pulled once. Between nodes: `row_wire`, the form of rows to and from
    owners, and `dense_wire`, of what is summed, by `algorithm`; "auto": the one that is predicted to be fastest."""

    local: bool = False
    row_wire: str = "float32"
    dense_wire: str = "float32"
    algorithm: str = "auto"
    together: bool = False


def rows_together(machine: Machine, aggregate: Aggregate, staleness: float = 0) -> tuple[bool, bool]:
    """Return whether ranks of any node sum their rows before they push them, and whether they pull together what they
    want of other nodes, as a run with these options does (`sparse.node_sum.open_node_sum`, `open_node_pull`). Local.
    """
    compute, home = np.array(machine.compute), machine.owner_nodes
    clients = np.repeat(np.arange(machine.nodes), compute)
    local = not staleness and sums_rows(aggregate, clients.tolist(), home.tolist())
    return local, local and any((home != node).any() for node in np.flatnonzero(compute > 1))


@dataclass
class Load:
    """What one phase asks of the machine; several parameters add theirs up.

    Of a node of kind n (machine.kinds), bytes: `out[n]`, `into[n]` on its link, `within[n]` in its shared memory;
    `owner_in[o]`, `owner_out[o]` of the first two that are owner o's; `counted`: a compute rank's by category
    (traffic.py), mean over the ranks. Seconds of work, alone on a core: `rank_work`, of the busiest rank, and
    `owner_work[o]`; of messages to other nodes, in which the sender waits for the receiver's MPI: `rank_sends`,
    `owner_sends[o]`. `turns`: messages that are waited for one after another. `summed`: bytes of dense arrays that
    every rank has its part of. `asked[n, o]`: requests of such a node to owner o that ask for rows of all tables.
    """

    out: np.ndarray
    into: np.ndarray
    within: np.ndarray
    owner_in: np.ndarray
    owner_out: np.ndarray
    owner_work: np.ndarray
    owner_sends: np.ndarray
    asked: np.ndarray
    rank_work: float = 0.0
    rank_sends: float = 0.0
    turns: float = 0.0
    summed: float = 0.0
    counted: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def none(cls, machine: Machine) -> Load:
        """Return no load. Local."""
        kinds = len(machine.kinds.node)
        nodes, owners = (lambda: np.zeros(kinds)), (lambda: np.zeros(machine.owners))
        asked = np.zeros((kinds, machine.owners))
        return cls(nodes(), nodes(), nodes(), owners(), owners(), owners(), owners(), asked)


Cost = dict[str, Load]


def no_cost(machine: Machine) -> Cost:
    """Return a cost of no load in every phase. Local."""
    return {phase: Load.none(machine) for phase in PHASES}


def add_parameter(
    cost: Cost, parameter: Dense | Sparse, way: Way, touched: Touched | None, machine: Machine, transport: Transport
) -> None:
    """Add what a parameter costs by a way to `cost`. `touched`: of a table. Local.

    A dense parameter at the owners is a table of one row for each of its first dimension, all of them touched.
    Raises UsageError for rows touched on another machine.
    """
    if isinstance(parameter, Dense):
        if way == "allreduce":
            cost["allreduce"].summed += parameter.bytes
            cost["update"].rank_work += parameter.bytes * (1 + parameter.slots) * machine.update_byte
            return
        parameter, touched = as_table(parameter, machine)
        transport = replace(transport, together=False)  # it is not part of what a batch wants
    if touched is None or len(touched.at_owner) != machine.owners:
        owners = "no" if touched is None else len(touched.at_owner)
        raise UsageError(
            f"table '{parameter.name}': rows touched at {owners} owners, and the machine has {machine.owners}: "
            "expected Touched.expected or Touched.measured for the same machine"
        )
    if way == "ps":
        _pull(cost["pull"], parameter, touched, machine, transport)
        _push(cost, parameter, touched, machine, transport)
        _serve(cost["server"], parameter, touched, machine, transport)
    else:
        _replica(cost, parameter, touched, way, machine)


def add_step(cost: Cost, machine: Machine, served: bool, transport: Transport, clip: bool = False) -> None:
    """Add what a step costs once, whatever there is of parameters: with `served` tables every rank writes to every
    owner, if only that it has nothing, and waits for its answer; with `clip` it first hears the owners' norms. Local.
    """
    if not served:
        return
    senders = _writers(machine, transport.local)
    load = cost["push"]
    _spread(load, machine, senders * float(HEADER_BYTES), "control")
    kinds, clients = machine.kinds, np.maximum(machine.kinds.compute, 1)
    far, here = _there(senders, kinds) / clients, _here(senders, kinds) / clients
    load.rank_sends += float(far.max()) * machine.message_seconds
    load.rank_work += float(here.max()) * machine.near_message_seconds
    # The message comes, the owner sees it; the new version comes, the rank sees it: that takes half of what a message
    # does, for every rank.
    load.turns += 1
    cost["server"].turns += 1
    near = np.array(machine.compute)[machine.owner_nodes]
    cost["server"].owner_sends += (machine.ranks - near) / 2 * machine.message_seconds
    cost["server"].owner_work += near / 2 * machine.near_message_seconds
    if clip:
        # An owner tells all ranks its norm at once; one rank tells all owners the factor.
        load, apart = cost["clip"], float(machine.nodes > 1)
        load.turns += 2
        load.rank_sends += 2 * apart * machine.message_seconds
        load.rank_work += (machine.owners + machine.ranks) * (1 - apart) * machine.near_message_seconds
        load.counted["control"] += SCALAR_BYTES * machine.owners * (1 + 1 / machine.ranks)


def as_table(parameter: Dense, machine: Machine) -> tuple[Sparse, Touched]:
    """Return a dense parameter as a table of which every rank touches all rows. Local."""
    rows = parameter.shape[0] if len(parameter.shape) > 1 else 1
    dim = max(1, parameter.bytes // np.dtype(parameter.dtype).itemsize // max(rows, 1))
    table = Sparse(parameter.name, rows, dim, parameter.dtype, parameter.slots, (), "block")
    held = table.map(machine.owners).counts.astype(np.float64)
    everything = tuple(float(rows) if n else 0.0 for n in machine.compute)
    return table, Touched(rows, everything, rows, tuple((held / rows).tolist()), tuple(held.tolist()))


# -- rows at their owners ------------------------------------------------------------------------------------------


def _pull(load: Load, table: Sparse, touched: Touched, machine: Machine, transport: Transport) -> None:
    kinds, clients = machine.kinds, machine.kinds.compute
    rows = touched.rank * np.array(touched.at_owner)
    wire = table.row_bytes * BYTES_ON_WIRE[transport.row_wire]
    near = _here(rows, kinds)  # rows of a client on a node that are there
    wanted = rows.sum() - near
    load.within += clients * _at_homes(rows, machine) * table.row_bytes
    pulled = np.outer(_rows_of_nodes(touched, machine, transport.together), touched.at_owner)  # were all owners far
    # Who wants no row of a table asks nobody for it: of few rows there are not more requests than rows.
    asked = np.minimum(_writers(machine, transport.together, elsewhere=True), pulled)
    requests = asked
    if transport.together:  # one request for all tables, where several ranks pull together
        joined = np.where(clients > 1, asked.T, 0.0).T
        requests = asked - np.minimum(joined, load.asked)
        load.asked = np.maximum(joined, load.asked)
    load.turns += 2 * bool(_there(requests, kinds).any())
    control = asked * PIECE_HEAD + requests * REQUEST_HEAD
    replies, requests_bytes = pulled * wire + requests * REPLY_HEAD, pulled * ID_BYTES + control
    answered, heard = _all(replies, kinds), _all(requests_bytes, kinds)
    load.owner_out += answered
    load.owner_in += heard
    load.out += _at_homes(answered, machine) + _there(requests_bytes, kinds)
    load.into += _at_homes(heard, machine) + _there(replies, kinds)
    busy = clients > 0
    each = np.divide(1.0, clients, out=np.zeros(len(clients)), where=busy)
    load.rank_work += float(
        (
            near * table.row_bytes / machine.gather_rate
            # Out of the slot, and to its place; what was pulled together is read once more from there.
            + _there(pulled, kinds) * each * table.row_bytes / machine.memory_rate
            + (wanted * table.row_bytes / machine.gather_rate if transport.together else 0.0)
        )[busy].max()
    )
    asking, came = _all(requests, kinds), _all(pulled, kinds)
    load.rank_sends += float((_there(requests, kinds) * each).max()) * machine.message_seconds
    load.owner_sends += asking * machine.message_seconds
    load.owner_work += came * table.row_bytes / machine.gather_rate
    nearby = float((kinds.count * clients * near).sum())
    load.counted["pull_rows"] += (nearby * table.row_bytes + float(came.sum()) * wire) / machine.ranks
    load.counted["pull_ids"] += float(came.sum()) * ID_BYTES / machine.ranks
    load.counted["control"] += float(_all(control, kinds).sum() + asking.sum() * REPLY_HEAD) / machine.ranks
    if transport.together:
        laid_out = pulled_together(clients * wanted, _there(pulled, kinds), table.row_bytes)
        laid_out = np.where(clients > 1, laid_out, 0.0)
        load.within += laid_out
        load.counted["aggregate"] += float((kinds.count * laid_out).sum()) / machine.ranks


def _push(cost: Cost, table: Sparse, touched: Touched, machine: Machine, transport: Transport) -> None:
    sent, load = _rows_of_nodes(touched, machine, transport.local), cost["push"]
    wire = table.row_bytes * BYTES_ON_WIRE[transport.row_wire]
    senders, share = _writers(machine, transport.local), np.array(touched.at_owner)
    if transport.local:
        local = cost["local"]
        ranks = machine.kinds.compute
        laid_out = ranks * aggregate(touched.rank / max(table.rows, 1), table.bytes, table.rows) * (ranks > 1)
        local.within += laid_out
        local.counted["aggregate"] += float((machine.kinds.count * laid_out).sum()) / machine.ranks
        most = max(machine.compute)
        if most > 1:
            # The ranks of a node share the rows out: each sums a part of them.
            local.rank_work += _aggregate(touched.rank, table, machine)
            local.rank_work += touched.rank * table.row_bytes / machine.memory_rate
            local.turns = 1  # of all tables together
    clients = machine.kinds.compute
    each = np.divide(sent, clients, out=np.zeros(len(clients)), where=clients > 0)  # rows that a rank sends
    _spread(load, machine, np.outer(sent, share * ID_BYTES), "push_ids")
    _spread(load, machine, np.outer(sent, share * table.row_bytes), "push_rows", wire / table.row_bytes)
    _spread(load, machine, np.minimum(senders, np.outer(sent, share)) * PIECE_BYTES, "control")
    load.rank_work += float(each.max()) * (table.row_bytes / machine.gather_rate + wire / machine.memory_rate)


def _serve(load: Load, table: Sparse, touched: Touched, machine: Machine, transport: Transport) -> None:
    came = (machine.kinds.count * _rows_of_nodes(touched, machine, transport.local)).sum() * np.array(touched.at_owner)
    unique = np.array(touched.all_at_owner)
    load.owner_work += _aggregate(came, table, machine)
    load.owner_work += unique * table.row_bytes * (1 + table.slots) * machine.update_byte


def _rows_of_nodes(touched: Touched, machine: Machine, together: bool) -> np.ndarray:
    """Return the rows that the ranks of a node of each kind pull from owners elsewhere, or push, float64 [kinds]: each
    row once if they do it `together`."""
    if together:
        return machine.kinds.mean(np.array(touched.nodes, np.float64))
    return machine.kinds.compute * touched.rank


@lru_cache(maxsize=8)
def _writers(machine: Machine, together: bool, elsewhere: bool = False) -> np.ndarray:
    """Return how many ranks of a node of each kind write to each owner, float64 [kinds, owners]. If they do it
    `together`, they divide the owners, all or those `elsewhere`, on other nodes."""
    kinds = machine.kinds
    writers = np.repeat(kinds.compute[:, None], machine.owners, axis=1)
    if together:
        for kind, ranks in enumerate(kinds.compute.astype(int)):
            owners = np.flatnonzero(kinds.is_far[kind]) if elsewhere else np.arange(machine.owners)
            if ranks and len(owners):
                writers[kind] = ranks / len(owners)  # its own owners, which other nodes of its kind ask
                writers[kind, owners] = sharers_of(np.arange(len(owners)), len(owners), ranks)
    writers.flags.writeable = False
    return writers


def _spread(load: Load, machine: Machine, size: np.ndarray, category: str, on_wire: float = 1.0) -> None:
    """Add `size[n, o]` bytes from a node of kind n to owner o, for all n and o; `on_wire` times that between nodes."""
    kinds = machine.kinds
    far, own = size * on_wire, size[kinds.of_node[machine.owner_nodes], np.arange(machine.owners)]
    heard = _all(far, kinds)
    load.owner_in += heard
    load.into += _at_homes(heard, machine)
    load.out += _there(far, kinds)
    load.within += _at_homes(own, machine)
    load.counted[category] += float(own.sum() + heard.sum()) / machine.ranks


def _there(size: np.ndarray, kinds: NodeKinds) -> np.ndarray:
    """Return the sums over the owners on other nodes of `size` [kinds, owners], of a node of each kind, float64
    [kinds]."""
    return (kinds.far * size).sum(axis=1) / kinds.count


def _here(size: np.ndarray, kinds: NodeKinds) -> np.ndarray:
    """Return the sums over the owners on the node itself of `size` [kinds, owners], of a node of each kind, float64
    [kinds]."""
    return ((kinds.count[:, None] - kinds.far) * size).sum(axis=1) / kinds.count


def _all(size: np.ndarray, kinds: NodeKinds) -> np.ndarray:
    """Return the sums over all nodes but the owner's own of `size` [kinds, owners], float64 [owners]."""
    return (kinds.far * size).sum(axis=0)


def _at_homes(at_owner: np.ndarray, machine: Machine) -> np.ndarray:
    """Return what the owners of a node have together, of the node of each kind with most, float64 [kinds]."""
    return machine.kinds.most(np.bincount(machine.owner_nodes, weights=at_owner, minlength=machine.nodes))


def _aggregate(rows: np.ndarray | float, table: Sparse, machine: Machine) -> np.ndarray | float:
    return rows * (machine.aggregate_row + table.row_bytes * machine.aggregate_byte)


# -- copies on every compute rank ----------------------------------------------------------------------------------


def _replica(cost: Cost, table: Sparse, touched: Touched, way: Way, machine: Machine) -> None:
    rows = touched.rank * table.row_bytes
    cost["pull"].rank_work += rows / machine.gather_rate
    cost["update"].rank_work += touched.all * table.row_bytes * (1 + table.slots) * machine.update_byte
    if way == "allreduce":
        load, bits = cost["allreduce"], -(-table.rows // 8)
        # This rank's rows into the buffer, the sums of all touched ones out of it, zeros in their places.
        load.rank_work += (rows + 2 * touched.all * table.row_bytes + 2 * table.rows) / machine.memory_rate
        load.summed += table.bytes
        load.counted["control"] += bits  # which rows anybody touched, by MPI's own sum
        return
    load, clients = cost["allgather"], machine.kinds.compute
    size = touched.rank * (ID_BYTES + table.row_bytes)
    # What MPI's all-gather does is its own affair; in a ring every node takes in what others have and hands it on.
    between = np.where(clients > 0, (machine.ranks - clients) * size, 0.0)
    load.into += between
    load.out += between
    load.within += np.maximum(clients - 1, 0) * machine.ranks * size
    load.rank_work += _aggregate(machine.ranks * touched.rank, table, machine)
    load.rank_work += machine.ranks * size / machine.memory_rate
    # All ranks hear how many rows come; then those of all tables are under way together, from each rank to the next.
    load.turns = math.ceil(math.log2(machine.ranks)) + machine.ranks - 1
    load.counted["gather_ids"] += (machine.ranks - 1) * touched.rank * ID_BYTES
    load.counted["gather_rows"] += (machine.ranks - 1) * rows
