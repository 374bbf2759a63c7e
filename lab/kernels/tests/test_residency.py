"""Claims on a GPU never add up to more than surely fits, whatever is asked for and in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import LabError
from lab.kernels.links import objection
from lab.kernels.registry import Claim, Registry
from lab.kernels.residency import SPARE, Gpu, Wish, offer

H200 = Gpu("nvidia", 132, 2, 1)
MI300X = Gpu("amd", 304, 1, 1)


@given(
    st.sampled_from([H200, MI300X, Gpu("nvidia", 132, 2, 4), Gpu("amd", 40, 1, 1)]),
    st.lists(st.one_of(st.integers(1, 512), st.floats(0.01, 1.0), st.none()), max_size=12),
)
def test_any_number_of_communicators_leaves_every_head_its_room(gpu, wishes):
    claims: list[Claim] = []
    for wish in wishes:
        made = Wish(blocks=wish) if isinstance(wish, int) else Wish(share=wish) if wish else Wish()
        try:
            claims.append(Claim("0", offer(gpu, made, claims), alone=False))
        except LabError as refused:
            assert "have" in str(refused)
    spare = 4 if gpu.sharing > 1 else min(SPARE[gpu.vendor], gpu.multiprocessors // 2)
    total = sum(claim.blocks for claim in claims)
    assert all(claim.blocks > 0 for claim in claims)
    # A block on each of so many multiprocessors at most, over all ranks of the GPU: the others hold none of ours.
    assert total * gpu.sharing <= gpu.multiprocessors - spare


def test_by_default_several_fit():
    claims: list[Claim] = []
    for _ in range(4):
        claims.append(Claim("0", offer(H200, Wish(), claims), alone=False))
    assert [claim.blocks for claim in claims] == [66, 22, 8, 2]


def test_who_wants_to_be_alone_is_alone():
    assert offer(H200, Wish(alone=True), []) == 264
    for there, wish in ((False, Wish(alone=True)), (True, Wish()), (True, Wish(alone=True))):
        with pytest.raises(LabError, match="alone on its GPU"):
            offer(H200, wish, [Claim("0", 1, alone=there)])
    with pytest.raises(LabError, match="several share"):
        offer(Gpu("nvidia", 132, 2, 2), Wish(alone=True), [])


def test_a_name_is_given_once_and_never_leads_to_another_object():
    class Thing:
        pass

    names = Registry()
    first, second = Thing(), Thing()
    assert names.enter("a", names.next_number("a"), first) == "a.1"
    assert names.find("a.1") is first
    with pytest.raises(LabError, match="given before"):
        names.enter("a", 1, second)
    del first
    assert names.enter("a", names.next_number("a"), second) == "a.2"
    with pytest.raises(LabError, match="no communicator of this name"):
        names.find("a.1")


def test_pcie_above_two_ranks_is_refused_by_name():
    def box(world, link):
        return [{peer: link for peer in range(world) if peer != rank} for rank in range(world)]

    for link in ("nvlink", "xgmi", "same"):
        assert objection(box(8, link), any_links=False) is None
    assert objection(box(2, "pcie"), any_links=False) is None
    assert objection(box(2, "hidden"), any_links=False) is None
    assert "pcie joins ranks 0 and 1" in objection(box(4, "pcie"), any_links=False)
    assert "make all GPUs visible" in objection(box(4, "hidden"), any_links=False)
    assert objection(box(4, "pcie"), any_links=True) is None
    one_pair = box(4, "nvlink")
    one_pair[2][3] = "pcie"
    assert "ranks 2 and 3" in objection(one_pair, any_links=False)
    assert "cannot reach the memory" in objection(box(2, "none"), any_links=True)
