"""What the columns of the timing model's arrays mean.

State lies in few arrays with named columns: numba passes every array of a call by value, so that many small arrays cost
more than the work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lab.protocol.program import Memory, Scope
from lab.protocol.tables import COLUMNS
from lab.sim.timing.presets import Costs

# `ops` has the columns of `Tables.ops` and four more: what is special about an operation, its poll bound and its
# bound in microseconds (-1: none), and its row of `values`.
ROLE, BOUND, LIMIT, NUMBER = range(COLUMNS, COLUMNS + 4)
OP_COLUMNS = COLUMNS + 4
PLAIN, LAUNCH, PREVIOUS, KERNEL_END, HOST, HOST_LAUNCH = range(6)
# Integers of an agent
PLACE, PC, ROW, AT, UPTO, W_WORD, W_VALUE, NEXT, STARTED, END, RANK, BLOCK, NTH_LAUNCH, FIRST, PHASE = range(15)
AGENT_INTEGERS = 15
LOADS, SAMPLE, STORES = range(3)  # PHASE of one iteration: its event is when loads leave, read, or stores leave
NOT_WAITING = -2  # NEXT of an agent that sleeps on nothing
# Floats of an agent; from LAST on, one a rank: when the last of its writes to that rank became visible
KEY, ISSUE, BACK, LOCAL_DRAIN, DRAIN, RATE, DELAY, W_FIRST, W_PERIOD, W_END, LAST = range(11)
# Integers and floats of a word; QUEUE values may be under way
VALUE, QUEUED, WAITER, OWNER, MEMORY, QUEUE_VALUE = range(6)
QUEUE = 8
QUEUE_WRITER = QUEUE_VALUE + QUEUE
WORD_INTEGERS = QUEUE_WRITER + QUEUE
CHANGED, QUEUE_TIME = range(2)
WORD_FLOATS = QUEUE_TIME + QUEUE
# A cell: elements, settled value, then value, time and writer of two values under way; with packets also their stamps
LENGTH, BASE, V1, T1, W1, V2, T2, W2, STAMP, S1, S2 = range(11)
CELL_COLUMNS, PACKET_COLUMNS = 8, 11
# Counters
EVENTS, INEXACT, HEAP, CHECKS, TIMEOUTS, SPANS, SPANS_LOST, MULTI = range(8)
COUNTERS = 8
# Floats of the machine: three servers a GPU, then one instant a pair of ranks
NOW, POISON, MEMORY_FREE = range(3)
GPUS = 8
OUT_FREE = MEMORY_FREE + GPUS
IN_FREE = OUT_FREE + GPUS
LINK_LAST = IN_FREE + GPUS
MACHINE_FLOATS = LINK_LAST + GPUS * GPUS
# Results
C_AGENT, C_PC, C_TIME, C_MEAN, C_WRONG, C_ELEMENTS, C_LOW, C_HIGH = range(8)
# Parameters of the machine, by position in `Costs`
_P = {name: position for position, name in enumerate(Costs._fields)}
RANKS_PER_GPU, STEP, BARRIER, FENCE, PROLOGUE, ITERATION = (
    _P[name] for name in ("ranks_per_gpu", "step_ns", "barrier_ns", "fence_ns", "prologue_ns", "iteration_ns")
)
L2_READ, UNCACHED_READ, REMOTE_READ = (_P[name] for name in ("l2_read_ns", "uncached_read_ns", "remote_read_ns"))
L2_WRITE, UNCACHED_WRITE, REMOTE_WRITE, REMOTE_ACK = (
    _P[name] for name in ("l2_write_ns", "uncached_write_ns", "remote_write_ns", "remote_ack_ns")
)
ATOMIC, POLL_GAP, ACCESS_SIGMA, BLOCK_SIGMA = (
    _P[name] for name in ("atomic_ns", "poll_gap_ns", "access_sigma", "block_sigma")
)
CACHED_GBS, UNCACHED_GBS, LINK_GBS, LINK_QUEUE = (
    _P[name] for name in ("cached_gbs", "uncached_gbs", "link_gbs", "link_queue_bytes")
)
LAUNCH_NS, LAUNCH_JITTER, GAP, GAP_JITTER = (
    _P[name] for name in ("launch_ns", "launch_jitter_ns", "gap_ns", "gap_jitter_ns")
)
DISPATCH, START_JITTER = _P["dispatch_ns"], _P["start_jitter_ns"]
HOST_STEP, HOST_POLL, HOST_JITTER = _P["host_step_ns"], _P["host_poll_ns"], _P["host_jitter_ns"]
CACHED, HOST_MAPPED, SHARED = int(Memory.CACHED), int(Memory.HOST_MAPPED), int(Memory.BLOCK_SHARED)
DEVICE_SCOPE = int(Scope.DEVICE)
INF = np.inf
WORD_BYTES = 32.0  # what a flag takes on a link


class Arrays(NamedTuple):
    """What the loop works on, in the order of its arguments; the first nine do not change."""

    ops: np.ndarray
    exprs: np.ndarray
    postfix: np.ndarray
    tests: np.ndarray
    addresses: np.ndarray
    moves: np.ndarray
    sources: np.ndarray
    items: np.ndarray
    iterations: np.ndarray
    place_of_cell: np.ndarray  # int16: rank << 8 | memory
    values: np.ndarray  # what FILL writes and EXPECT is due
    agent: np.ndarray
    clock: np.ndarray
    registers: np.ndarray
    word: np.ndarray
    queue: np.ndarray
    cells: np.ndarray
    held: np.ndarray  # what the loads of an agent's iteration read
    cell_waiter: np.ndarray
    gaps: np.ndarray
    heap: np.ndarray  # row 0: the heap; row 1: agents that wait for the sum of several words
    count: np.ndarray
    machine: np.ndarray
    random: np.ndarray
    checks: np.ndarray
    timeouts: np.ndarray
    span_op: np.ndarray
    span_time: np.ndarray
