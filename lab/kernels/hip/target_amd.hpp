#pragma once
// AMD: gfx9 (90a, 942, 950), gfx10 and later, from clang's builtins alone; no HIP header is needed.

#define LAB_DEVICE __attribute__((device, always_inline)) inline
#define LAB_KERNEL extern "C" __attribute__((global, used, amdgpu_flat_work_group_size(1, 512))) void
#define LAB_SHARED(type, name) static __attribute__((shared)) type name

// A comment in the assembly, for isa.py to find the place; no instruction.
#define LAB_ISA_MARK(text) asm volatile("; lab " text::: "memory")
#define LAB_ISA_COUNT(text, count) asm volatile("; lab " text " %0" ::"n"(count) : "memory")

namespace lab {

LAB_DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
LAB_DEVICE u32 block_index() { return __builtin_amdgcn_workgroup_id_x(); }

/// A value that is the same in every thread of the block, in a scalar register: where the compiler has
/// computed it in a vector one, each access that needs it would else become a loop.
LAB_DEVICE u32 uniform(u32 value) { return __builtin_amdgcn_readfirstlane(value); }

/// The kernel's arguments, to be loaded anew: what is used through this needs no scalar register before, and
/// there are too few of them for all that a call holds. Args is the kernel's one argument.
template <typename Args>
LAB_DEVICE const Args& loaded_anew(const Args&) {
    auto* arguments = __builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(arguments));
    return *(const Args*)arguments;
}

// A kernel starts when its predecessor in the stream has ended.
LAB_DEVICE void start_after_predecessor() {}
LAB_DEVICE void let_successor_start() {}
/// Behind a kernel's start the scalar cache holds no line from before.
LAB_DEVICE u64 load_of_predecessor(const u64* word) { return *word; }

/// Wait until every store of this wave has been acknowledged.
LAB_DEVICE void drain_stores() {
#if defined(__GFX12__)
    asm volatile("s_wait_storecnt 0x0" ::: "memory");
#elif defined(__GFX10__) || defined(__GFX11__)
    asm volatile("s_waitcnt_vscnt null, 0x0" ::: "memory");
#else
    asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}

LAB_DEVICE void block_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

/// A workgroup fence emits no vmcnt(0) on gfx9: without this drain, the publisher's fence would cover its own
/// wave alone.
LAB_DEVICE void block_barrier_draining() {
    drain_stores();
    block_barrier();
}

template <typename Word>
LAB_DEVICE Word load_relaxed_system(const Word* word) {
    return __hip_atomic_load(word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

template <typename Word>
LAB_DEVICE void store_relaxed_system(Word* word, Word value) {
    __hip_atomic_store(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}

/// Write-back, then WAIT for it. A release *store* is not enough: up to LLVM 22 the wait after buffer_wbl2 is
/// dropped when the wave has no other vector-memory operation pending (llvm-project PR 178316).
LAB_DEVICE void fence_release_system() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
#if !defined(__GFX12__)
    __builtin_amdgcn_s_waitcnt(0);
#endif
    drain_stores();
}

/// Pairs with load_polled_system and the acquire_polled_system after it.
LAB_DEVICE void store_release_system(u64* flag, u64 value) {
    fence_release_system();
    LAB_ISA_MARK("flag store");
    store_relaxed_system(flag, value);
}

#if defined(__gfx942__) || defined(__gfx950__)
#define LAB_SCOPED_BYPASS 1
#else
#define LAB_SCOPED_BYPASS 0
#endif

/// Behind block_barrier_draining: the *_bypass stores of all waves have been acknowledged.
///
/// Where they carry system scope (gfx942, gfx950) an acknowledged store has reached the memory that
/// the peers read, and no cache holds a line of it that would have to be written back. That is the memory
/// model's word on scoped stores (LLVM, "User Guide for AMDGPU Backend", memory model tables) and depends
/// neither on the kind of memory nor on the ROCm version; the workspace is uncached all the same.
/// Elsewhere the stores carry no scope, so the release stays: gfx90a may keep them in its L2, and on gfx12
/// the compiler waits for all others before each store of system scope. gfx10 has nothing to write back; its
/// release is the wait that the barrier has made already.
LAB_DEVICE void store_drained_system(u64* flag, u64 value) {
#if LAB_SCOPED_BYPASS
    LAB_ISA_MARK("drained flag store");
    store_relaxed_system(flag, value);
#else
    store_release_system(flag, value);
#endif
}

LAB_DEVICE u64 load_polled_system(const u64* flag) { return load_relaxed_system(flag); }

/// Acquire half of store_release_system and store_drained_system. The wave that polled executes it before the
/// block barrier: a fence of a wave that read no flag orders nothing.
LAB_DEVICE void acquire_polled_system() {
    LAB_ISA_MARK("acquire");
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
}

/// In every wave, behind the barrier that follows acquire_polled_system. On gfx10 and later a block may span
/// two compute units with a near cache each (WGP mode). On gfx9 it is on one, whose cache the wave that
/// polled has emptied; these kernels are not compiled for tgsplit mode, which would spread it.
LAB_DEVICE void acquire_behind_barrier() {
#if !defined(__GFX9__)
    acquire_polled_system();
#endif
}

/// For isa.py: from here on, and in the loop up to loads_end, so many loads are issued before one of them is
/// waited for. Not within a loop that is to be unrolled, for the compiler does not copy a mark.
template <u32 loads>
LAB_DEVICE void loads_begin() {
    LAB_ISA_COUNT("loads", loads);
}
LAB_DEVICE void loads_end() { LAB_ISA_MARK("loads end"); }
/// No peer's data is read behind the meeting that this stands in, so that it need not acquire.
LAB_DEVICE void reads_nothing() { LAB_ISA_MARK("reads nothing"); }

using Quad = u32 __attribute__((ext_vector_type(4)));

#if LAB_SCOPED_BYPASS

// A buffer access carries its cache policy. Unlike a volatile access it is not followed by a wait, so several
// stay in flight, and unlike inline assembly the compiler counts it: a wait for a load is not one for the
// stores behind it.
constexpr int system_scope = 1 | 16; // sc0 and sc1
LAB_DEVICE __amdgpu_buffer_rsrc_t buffer_of(const Vec16* base) {
    return __builtin_amdgcn_make_buffer_rsrc(const_cast<Vec16*>(base), 0, -1, 0x00027000);
}
LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 slot, u32 index) {
    const Quad q =
        __builtin_amdgcn_raw_buffer_load_b128(buffer_of(base), index * 16, slot * 16, system_scope);
    return Vec16{{q.x, q.y, q.z, q.w}};
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    const Quad q = {v.word[0], v.word[1], v.word[2], v.word[3]};
    __builtin_amdgcn_raw_buffer_store_b128(q, buffer_of(base), index * 16, 0, system_scope);
}
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 slot, u32 index) {
    return load_bypass(base, slot, index);
}

#else

// Staging is uncached memory here; nontemporal keeps it out of the way of what is cached.
LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 slot, u32 index) {
    const Quad q = __builtin_nontemporal_load(reinterpret_cast<const Quad*>(base + slot) + index);
    return Vec16{{q.x, q.y, q.z, q.w}};
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    const Quad q = {v.word[0], v.word[1], v.word[2], v.word[3]};
    __builtin_nontemporal_store(q, reinterpret_cast<Quad*>(base + index));
}
/// No acquire follows a polled payload, so each poll itself must pass the near caches: two system-scope
/// loads.
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 slot, u32 index) {
    const u64* half = reinterpret_cast<const u64*>(base + slot + index);
    const u64 low = load_relaxed_system(half);
    const u64 high = load_relaxed_system(half + 1);
    return Vec16{{u32(low), u32(low >> 32), u32(high), u32(high >> 32)}};
}

#endif

// A peer's tensor is read once, so that no cache should keep a line of it: scope and hint of the access say
// so. That is no order: what makes the peer's stores visible is the meeting in front of it.
#if defined(__GFX12__)
constexpr int single_use = 3 << 3 | 1; // SCOPE_SYS, TH_LOAD_NT
#elif defined(__gfx942__) || defined(__gfx950__)
constexpr int single_use = 1 | 2 | 16; // sc0 nt sc1
#elif defined(__GFX10__) || defined(__GFX11__)
constexpr int single_use = 1 | 2 | 4; // glc slc dlc
#else
constexpr int single_use = 1 | 2; // glc slc
#endif
#if defined(__GFX9__)
constexpr u32 peer_buffer_word = 0x00027000;
#elif defined(__GFX10__)
constexpr u32 peer_buffer_word = 0x31014000;
#else
constexpr u32 peer_buffer_word = 0x31004000;
#endif
LAB_DEVICE Vec16 load_peer_bypass(const Vec16* tensor, u32 index) {
    const auto buffer =
        __builtin_amdgcn_make_buffer_rsrc(const_cast<Vec16*>(tensor), 0, -1, peer_buffer_word);
    const Quad q = __builtin_amdgcn_raw_buffer_load_b128(buffer, index * 16, 0, single_use);
    return Vec16{{q.x, q.y, q.z, q.w}};
}
LAB_DEVICE Vec16 load_peer_cached(const Vec16* tensor, u32 index) { return tensor[index]; }

/// One access, at any alignment: amdhsa runs with unaligned access mode on. The type says what is certain.
using QuadOfElements = u32 __attribute__((ext_vector_type(4), aligned(2)));
LAB_DEVICE Vec16 load_unaligned(const void* where) {
    const QuadOfElements q = *static_cast<const QuadOfElements*>(where);
    return Vec16{{q.x, q.y, q.z, q.w}};
}
LAB_DEVICE void store_unaligned(void* where, const Vec16& v) {
    *static_cast<QuadOfElements*>(where) = QuadOfElements{v.word[0], v.word[1], v.word[2], v.word[3]};
}

LAB_DEVICE bool compare_exchange_device(u64* word, u64 expected, u64 desired) {
    return __hip_atomic_compare_exchange_strong(word, &expected, desired, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                                __HIP_MEMORY_SCOPE_AGENT);
}

LAB_DEVICE void add_release_device(u64* word, u64 value) {
    fence_release_system();
    __hip_atomic_fetch_add(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

/// Constant-rate counter, 100 MHz on the parts supported here.
LAB_DEVICE u64 wall_clock() {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_readsteadycounter();
#else
    return __builtin_amdgcn_s_memrealtime();
#endif
}
/// The clobber keeps the compiler from polling once and looping over the result: a buffer load is not
/// volatile.
LAB_DEVICE void pause() {
    asm volatile("" ::: "memory");
    __builtin_amdgcn_s_sleep(1);
}
constexpr u32 polls_of_a_short_wait = 0;

LAB_DEVICE float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
LAB_DEVICE u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
LAB_DEVICE float product(float a, float b) { return a * b; } // -ffp-contract=off
LAB_DEVICE float square_root(float value) { return __builtin_sqrtf(value); }
LAB_DEVICE float half_to_float(u16 bits) { return float(__builtin_bit_cast(_Float16, bits)); }
LAB_DEVICE u16 float_to_half_rne(float value) { return __builtin_bit_cast(u16, _Float16(value)); }

#if defined(__gfx950__)
#define LAB_HAVE_PACKED_BF16 1
/// v_cvt_pk_bf16_f32, which rounds as the mode register says: isa.py checks that it says RNE and keeps
/// subnormals. What it makes of a NaN does not matter, rounding.hpp puts the canonical one there.
LAB_DEVICE u32 convert_bf16_rne(float low, float high) {
    using Pair = __bf16 __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(u32, Pair{__bf16(low), __bf16(high)});
}
#endif

} // namespace lab
