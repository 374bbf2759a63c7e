#pragma once
// NVIDIA, sm_70 and later: the same names in PTX. Here the kernels run today; AMD is what they are for.

constexpr int lab_max_threads = 512;

#define LAB_DEVICE __device__ __forceinline__
#define LAB_KERNEL extern "C" __global__ void __launch_bounds__(lab_max_threads, 1)
#define LAB_SHARED(type, name) __shared__ type name

namespace lab {

LAB_DEVICE u32 thread_index() { return threadIdx.x; }
LAB_DEVICE u32 block_index() { return blockIdx.x; }

LAB_DEVICE void block_barrier() { __syncthreads(); }

/// With Call::early this launch may be placed while its predecessor in the stream still runs.
LAB_DEVICE bool starts_early(bool early) {
#if __CUDA_ARCH__ >= 900
    return early;
#else
    return false;
#endif
}
/// Seen on two H200 when the stores were not waited for: a block of the successor read its number from
/// before, and the peers waited for it in vain. One thread of every block is enough to let the successor
/// start, so each releases what all of them have stored: its fence is behind the barrier.
LAB_DEVICE void publish_to_successor() {
    block_barrier();
    __threadfence();
}
/// Without Call::early, both instructions do nothing.
LAB_DEVICE void start_after_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Release is cumulative in PTX: a barrier followed by one thread's release covers the whole block's stores.
LAB_DEVICE void block_barrier_draining() { __syncthreads(); }

LAB_DEVICE u64 load_relaxed_system(const u64* word) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
LAB_DEVICE void store_relaxed_system(u64* word, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
LAB_DEVICE void store_release_system(u64* flag, u64 value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
/// The polling load is itself the acquire, and the block barrier after it passes it on: nothing is left to do
/// in acquire_polled_system.
LAB_DEVICE u64 load_polled_system(const u64* flag) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}
LAB_DEVICE void acquire_polled_system() {}

// Volatile keeps these in order with the flag accesses above; without a memory clobber, plain loads of the
// input may still be issued ahead of them.
LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 index) {
    Vec16 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(base + index));
    return v;
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(base + index), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]));
}
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 index) { return load_bypass(base, index); }

LAB_DEVICE bool compare_exchange_device(u64* word, u64 expected, u64 desired) {
    return atomicCAS(word, expected, desired) == expected;
}

LAB_DEVICE void add_release_device(u64* word, u64 value) {
    __threadfence_system();
    atomicAdd(word, value);
}

/// Nanoseconds.
LAB_DEVICE u64 wall_clock() {
    u64 ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}
LAB_DEVICE void pause() {}
/// What follows a short wait is up to 0.1 us sooner when the code of long waits is out of the way.
constexpr u32 polls_of_a_short_wait = 64;

LAB_DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
LAB_DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
LAB_DEVICE float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
LAB_DEVICE u16 float_to_half_rne(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#if __CUDA_ARCH__ >= 900
#define LAB_HAVE_PACKED_RNE 1
// The conversion's NaN is 7FFF in both types; the comparison fills the halves that are NaN with ones.
LAB_DEVICE u32 pack_bf16_rne(float low, float high) {
    u32 word, nan;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    asm("set.nan.u32.bf16x2 %0, %1, %1;" : "=r"(nan) : "r"(word));
    return (word & ~nan) | (0x7fc07fc0u & nan);
}
LAB_DEVICE u32 pack_fp16_rne(float low, float high) {
    u32 word, nan;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    asm("set.nan.u32.f16x2 %0, %1, %1;" : "=r"(nan) : "r"(word));
    return (word & ~nan) | (0x7e007e00u & nan);
}
#endif

} // namespace lab
