import pytest

from lab.errors import LabError
from lab.kernels.staging import MAX_BLOCKS, Layout
from lab.kernels.strategy import (
    MEASURED,
    Band,
    Plan,
    Room,
    Strategy,
    default,
    fixed,
    launch_shape,
    layout_for,
    unmeasured,
)

MI = 1 << 20
ROOM = Room(MAX_BLOCKS, 132 * 512)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_every_message_up_to_the_workspace_has_a_plan_that_fits(world):
    layout = Layout(world, 32 * MI, MI, MI)
    tables = [unmeasured("gfx942", world), *(table for (_, w), table in MEASURED.items() if w == world)]
    for table in tables:
        for nbytes in (1, 16, 4096, MI - 2, MI, MI + 2, 32 * MI):
            plan = table.plan(nbytes, layout, ROOM)
            if nbytes > table.largest(layout):
                assert max(table.pieces(nbytes, layout)) <= table.largest(layout) and plan is None
                continue
            shared = table.plan(nbytes, layout, Room.of_shared_gpu(132, world))
            assert shared.blocks * world < 132 and shared.algorithm == plan.algorithm
            assert nbytes <= layout.capacity(plan.algorithm)
            assert 1 <= plan.blocks <= MAX_BLOCKS and plan.blocks * plan.threads <= 132 * 512
            assert plan.threads >= world
        assert table.plan(32 * MI + 1, layout, ROOM) is None
        assert sum(table.pieces(100 * MI + 3, layout)) == 100 * MI + 3


def test_two_shot_counts_the_vectors_of_a_part():
    band = Band(1 << 62, "two_shot", 256, 512)
    assert launch_shape(band, 256 * 16 * 4, 4, ROOM).blocks == 1
    assert launch_shape(band, 256 * 16 * 4 + 1, 4, ROOM).blocks == 2


def test_measured_where_there_is_a_measurement():
    assert "H200" in default("sm_90", 2).source
    assert "not measured" in default("gfx942", 8).source


def test_mistakes_are_named():
    with pytest.raises(LabError, match="rise"):
        Strategy((Band(8, "one_shot", 64, 1), Band(8, "two_shot", 64, 1)), "test")
    with pytest.raises(LabError, match="threads"):
        fixed("one_shot", threads=100)


@pytest.mark.parametrize("world", [2, 3, 5, 8])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "sm_103", "gfx942", "gfx1201"])
def test_a_table_that_nobody_measured_names_its_sources_and_hands_large_messages_over(architecture, world):
    table = default(architecture, world)
    if (architecture, world) not in MEASURED:
        assert "not measured" in table.source and "handed over above" in table.source
        assert table.max_bytes <= 64 * MI
    assert all(band.algorithm != "one_shot" for band in table.bands)


def test_a_part_of_a_message_spreads_over_the_gpu():
    plan = unmeasured("gfx942", 8).plan(MI, Layout(8, 32 * MI, MI, MI), Room(304, 304 * 512))
    assert plan == Plan("two_shot", 64, 128)  # a vector a thread: 8192 vectors of a part


@pytest.mark.parametrize("workspace", [8 * MI, 24 * MI, 32 * MI, 320 * MI])
@pytest.mark.parametrize("world", [2, 3, 8])
def test_a_workspace_keeps_to_its_bytes_and_carries_every_message(workspace, world):
    for table in (default("sm_90", world), default("gfx942", world), fixed("one_shot"), fixed("two_shot")):
        layout = layout_for(table, world, workspace, 64 * MI)
        assert layout.total_bytes <= workspace
        for nbytes in (2, 4096, 5 * MI + 6, 64 * MI):
            pieces = table.pieces(nbytes, layout)
            assert sum(pieces) == nbytes and all(piece % 4096 == 0 for piece in pieces[:-1])
            assert all(table.plan(piece, layout, ROOM) for piece in pieces)
    with pytest.raises(LabError, match="the least"):
        layout_for(fixed("one_shot"), world, 1 << 16, MI)


def test_the_default_workspace_holds_a_third_of_16_mib():
    table = default("sm_90", 2)
    layout = layout_for(table, 2, 32 * MI, 64 * MI)
    assert 31 * MI < layout.total_bytes <= 32 * MI
    assert [len(table.pieces(n * MI, layout)) for n in (4, 16, 64)] == [1, 3, 11]


def test_fewer_blocks_become_larger_ones():
    band = Band(1 << 62, "low_latency", 128, 512)
    assert launch_shape(band, 256 << 10, 2, Room(66, 66 * 512)).threads == 256
    assert launch_shape(band, MI, 2, Room(66, 66 * 512)) == Plan("low_latency", 66, 512)
    assert launch_shape(band, MI, 2, ROOM) == Plan("low_latency", 512, 128)
