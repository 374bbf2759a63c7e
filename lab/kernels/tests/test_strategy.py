import pytest

from lab.errors import LabError
from lab.kernels.staging import MAX_BLOCKS, Layout
from lab.kernels.strategy import MEASURED, Band, Room, Strategy, default, fixed, launch_shape, traffic_rule

MI = 1 << 20
ROOM = Room(MAX_BLOCKS, 132 * 512)


@pytest.mark.parametrize("world", [2, 3, 8])
def test_every_message_up_to_the_workspace_has_a_plan_that_fits(world):
    layout = Layout(world, 32 * MI, MI, MI)
    tables = [traffic_rule(world), *(table for (_, w), table in MEASURED.items() if w == world)]
    for table in tables:
        for nbytes in (1, 16, 4096, MI - 2, MI, MI + 2, 32 * MI):
            plan = table.plan(nbytes, layout, ROOM)
            shared = table.plan(nbytes, layout, Room.of_shared_gpu(132, world))
            assert shared.blocks * world < 132 and shared.algorithm == plan.algorithm
            assert nbytes <= layout.capacity(plan.algorithm)
            assert 1 <= plan.blocks <= MAX_BLOCKS and plan.blocks * plan.threads <= 132 * 512
            assert plan.threads >= world
        assert table.plan(32 * MI + 1, layout, ROOM) is None


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
