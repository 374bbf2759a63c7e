"""What release, acquire and cache bypass look like on each AMD architecture."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """What release, acquire and cache bypass look like on one architecture.

    Attributes:
        write_back: the cache write-back of a system-scope release; None where stores write through.
        wait: a wait instruction after which all earlier stores have been acknowledged.
        invalidates: what a system-scope acquire must execute before the next load.
        payload: cache bits that every 16-byte payload access carries.
        polled: cache bits of a load whose data is its own flag.
        scoped: whether `payload` is system scope, so that an acknowledged store needs no write-back.
        two_caches: whether a block may span two compute units with a near cache each.
        stores_apart: whether stores have a counter of their own, so that no wait for a load is one for a store.
        packed: the conversion of two fp32 values to bf16, where there is one.
    """

    write_back: str | None
    wait: str
    invalidates: tuple[str, ...]
    payload: frozenset[str]
    polled: frozenset[str]
    scoped: bool = False
    two_caches: bool = False
    stores_apart: bool = False
    packed: str | None = None


_GFX9_WAIT = r"s_waitcnt .*vmcnt\(0\)"
_SYSTEM = frozenset({"sc0", "sc1"})
_INVALIDATES = ("buffer_inv sc0 sc1",)
RULES = {
    "gfx1030": Rules(
        write_back=None,
        wait=r"s_waitcnt_vscnt null, 0x0",
        invalidates=("buffer_gl1_inv", "buffer_gl0_inv"),
        payload=frozenset({"slc"}),
        polled=frozenset({"glc", "dlc"}),
        two_caches=True,
        stores_apart=True,
    ),
    "gfx1201": Rules(
        write_back="global_wb scope:SCOPE_SYS",
        wait=r"s_wait_storecnt 0x0",
        invalidates=("global_inv scope:SCOPE_SYS",),
        payload=frozenset({"nt"}),
        polled=frozenset({"scope:SCOPE_SYS"}),
        two_caches=True,
        stores_apart=True,
    ),
    "gfx90a": Rules(
        write_back="buffer_wbl2",
        wait=_GFX9_WAIT,
        invalidates=("buffer_invl2", "buffer_wbinvl1_vol"),
        payload=frozenset({"glc", "slc"}),
        polled=frozenset({"glc"}),
    ),
    "gfx942": Rules("buffer_wbl2 sc0 sc1", _GFX9_WAIT, _INVALIDATES, _SYSTEM, _SYSTEM, scoped=True),
    "gfx950": Rules(
        "buffer_wbl2 sc0 sc1", _GFX9_WAIT, _INVALIDATES, _SYSTEM, _SYSTEM, scoped=True, packed="v_cvt_pk_bf16_f32"
    ),
}
