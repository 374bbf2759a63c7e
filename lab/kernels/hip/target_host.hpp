#pragma once
// CPU host: every GPU thread is a fiber (host_fibers.hpp). Each access below is a point at which the seeded
// scheduler may switch. With Options::weak, the words of a payload store wait in their thread's queue until
// it drains them, publishes, or ends: the host then sees a missing drain or release. It does not model stale
// caches on the reading side: a missing acquire cannot be seen here.
#include "host_fibers.hpp"

#define LAB_DEVICE inline
#define LAB_KERNEL extern "C" __attribute__((visibility("default"))) void
#define LAB_SHARED(type, name)                                                                               \
    type& name = *static_cast<type*>(lab::host::shared_object(__COUNTER__, sizeof(type)))

namespace lab {

LAB_DEVICE u32 thread_index() { return host::running->thread; }
LAB_DEVICE u32 block_index() { return host::running->group->block; }

template <u32 loads>
LAB_DEVICE void loads_begin() {}
LAB_DEVICE void loads_end() {}
LAB_DEVICE void reads_nothing() {}
LAB_DEVICE u32 uniform(u32 value) { return value; }
template <typename Args>
LAB_DEVICE const Args& loaded_anew(const Args& arguments) {
    return arguments;
}

LAB_DEVICE void block_barrier() { host::block_barrier(); }

LAB_DEVICE void start_after_predecessor() { host::start_after_predecessor(); }
LAB_DEVICE void let_successor_start() { host::let_successor_start(*host::running->group); }

LAB_DEVICE void block_barrier_draining() {
    host::deliver_all(*host::running);
    host::block_barrier();
}

LAB_DEVICE u64 load_relaxed_system(const u64* word) {
    host::yield_point();
    return *const_cast<const volatile u64*>(word);
}
LAB_DEVICE void store_relaxed_system(u64* word, u64 value) {
    host::yield_point();
    *const_cast<volatile u64*>(word) = value;
}
LAB_DEVICE void store_release_system(u64* flag, u64 value) {
    host::deliver_all(*host::running);
    store_relaxed_system(flag, value);
}
LAB_DEVICE void store_drained_system(u64* flag, u64 value) { store_relaxed_system(flag, value); }
LAB_DEVICE u64 load_of_predecessor(const u64* word) { return load_relaxed_system(word); }
LAB_DEVICE u64 load_polled_system(const u64* flag) { return load_relaxed_system(flag); }
LAB_DEVICE void acquire_polled_system() {}
LAB_DEVICE void acquire_behind_barrier() {}

LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 slot, u32 index) {
    host::yield_point();
    return base[slot + index];
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    host::yield_point();
    host::store(base + index, v);
}
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 slot, u32 index) {
    return load_bypass(base, slot, index);
}

LAB_DEVICE Vec16 load_peer_bypass(const Vec16* tensor, u32 index) { return load_bypass(tensor, 0, index); }
LAB_DEVICE Vec16 load_peer_cached(const Vec16* tensor, u32 index) { return load_bypass(tensor, 0, index); }

/// A tensor is no payload: launches are ordered by the stream, so nobody sees the bytes arrive one by one.
LAB_DEVICE Vec16 load_unaligned(const void* where) {
    Vec16 v;
    memcpy(&v, where, sizeof v);
    return v;
}
LAB_DEVICE void store_unaligned(void* where, const Vec16& v) { memcpy(where, &v, sizeof v); }

LAB_DEVICE bool compare_exchange_device(u64* word, u64 expected, u64 desired) {
    host::yield_point();
    if (*word != expected) return false;
    *word = desired;
    return true;
}

LAB_DEVICE void add_release_device(u64* word, u64 value) {
    host::deliver_all(*host::running);
    host::yield_point();
    *word += value;
}

/// Scheduler steps.
LAB_DEVICE u64 wall_clock() { return host::scheduler.steps; }
LAB_DEVICE void pause() { host::pause(); }
constexpr u32 polls_of_a_short_wait = 2;

LAB_DEVICE float float_of(u32 bits) { return __builtin_bit_cast(float, bits); }
LAB_DEVICE u32 bits_of(float value) { return __builtin_bit_cast(u32, value); }
LAB_DEVICE float product(float a, float b) { return a * b; }
LAB_DEVICE float square_root(float value) { return __builtin_sqrtf(value); }
LAB_DEVICE float half_to_float(u16 bits) { return float(__builtin_bit_cast(_Float16, bits)); }
LAB_DEVICE u16 float_to_half_rne(float value) { return __builtin_bit_cast(u16, _Float16(value)); }

} // namespace lab
