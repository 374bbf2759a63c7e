#pragma once
// AMD: gfx9 (90a, 942, 950), gfx10 and later, from clang's builtins alone; no HIP header is needed.

#define LAB_DEVICE __attribute__((device, always_inline)) inline
#define LAB_KERNEL extern "C" __attribute__((global, used, amdgpu_flat_work_group_size(1, 512))) void
#define LAB_SHARED(type, name) static __attribute__((shared)) type name

// A comment in the assembly, for isa.py to find the place; no instruction.
#define LAB_ISA_MARK(text) asm volatile("; lab " text::: "memory")

namespace lab {

LAB_DEVICE u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
LAB_DEVICE u32 block_index() { return __builtin_amdgcn_workgroup_id_x(); }

// A kernel starts when its predecessor in the stream has ended.
LAB_DEVICE bool starts_early(bool) { return false; }
LAB_DEVICE void publish_to_successor() {}
LAB_DEVICE void start_after_predecessor() {}

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
    __builtin_amdgcn_s_waitcnt(0);
    drain_stores();
}

/// Pairs with load_polled_system and the acquire_polled_system after it.
LAB_DEVICE void store_release_system(u64* flag, u64 value) {
    fence_release_system();
    LAB_ISA_MARK("flag store");
    store_relaxed_system(flag, value);
}

LAB_DEVICE u64 load_polled_system(const u64* flag) { return load_relaxed_system(flag); }

/// Acquire half of store_release_system. The wave that polled executes it before the block barrier: a fence
/// of a wave that read no flag orders nothing. Every wave executes it again behind the barrier, because a
/// block may span two caches (WGP mode).
LAB_DEVICE void acquire_polled_system() {
    LAB_ISA_MARK("acquire");
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
}

using Quad = u32 __attribute__((ext_vector_type(4)));

#if defined(__gfx942__) || defined(__gfx950__)
#define LAB_HAVE_SCOPED_B128 1
#else
#define LAB_HAVE_SCOPED_B128 0
#endif

#if __has_builtin(__builtin_amdgcn_global_load_b128) && __has_builtin(__builtin_amdgcn_global_store_b128)

using GlobalQuad = __attribute__((address_space(1))) Quad;
LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 index) {
    const Quad q = __builtin_amdgcn_global_load_b128((GlobalQuad*)(base + index), "");
    return Vec16{{q.x, q.y, q.z, q.w}};
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    __builtin_amdgcn_global_store_b128((GlobalQuad*)(base + index),
                                       Quad{v.word[0], v.word[1], v.word[2], v.word[3]}, "");
}
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 index) { return load_bypass(base, index); }

#elif LAB_HAVE_SCOPED_B128

// A buffer access carries its cache policy: sc0 (1) and sc1 (16) together are system scope. Unlike a volatile
// access it is not followed by a wait, so several stay in flight.
constexpr int system_scope = 17;
LAB_DEVICE __amdgpu_buffer_rsrc_t buffer_of(const Vec16* base) {
    return __builtin_amdgcn_make_buffer_rsrc(const_cast<Vec16*>(base), 0, -1, 0x00027000);
}
LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 index) {
    const Quad q = __builtin_amdgcn_raw_buffer_load_b128(buffer_of(base), index * 16, 0, system_scope);
    return Vec16{{q.x, q.y, q.z, q.w}};
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    const Quad q = {v.word[0], v.word[1], v.word[2], v.word[3]};
    __builtin_amdgcn_raw_buffer_store_b128(q, buffer_of(base), index * 16, 0, system_scope);
}
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 index) { return load_bypass(base, index); }

#else

// Staging is uncached memory here; nontemporal keeps it out of the way of what is cached.
LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 index) {
    const Quad q = __builtin_nontemporal_load(reinterpret_cast<const Quad*>(base + index));
    return Vec16{{q.x, q.y, q.z, q.w}};
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    const Quad q = {v.word[0], v.word[1], v.word[2], v.word[3]};
    __builtin_nontemporal_store(q, reinterpret_cast<Quad*>(base + index));
}
/// No acquire follows a polled payload, so each poll itself must pass the near caches: two system-scope
/// loads.
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 index) {
    const u64* half = reinterpret_cast<const u64*>(base + index);
    const u64 low = load_relaxed_system(half);
    const u64 high = load_relaxed_system(half + 1);
    return Vec16{{u32(low), u32(low >> 32), u32(high), u32(high >> 32)}};
}

#endif

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
LAB_DEVICE float half_to_float(u16 bits) { return float(__builtin_bit_cast(_Float16, bits)); }
LAB_DEVICE u16 float_to_half_rne(float value) { return __builtin_bit_cast(u16, _Float16(value)); }

} // namespace lab
