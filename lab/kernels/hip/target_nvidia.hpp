#pragma once
// NVIDIA, sm_70 and later: the same names in PTX. Here the kernels run today; AMD is what they are for.

constexpr int lab_max_threads = 512;

#define LAB_DEVICE __device__ __forceinline__
#define LAB_KERNEL extern "C" __global__ void __launch_bounds__(lab_max_threads, 1)
#define LAB_SHARED(type, name) __shared__ type name

namespace lab {

LAB_DEVICE u32 thread_index() { return threadIdx.x; }
LAB_DEVICE u32 block_index() { return blockIdx.x; }

template <u32 loads>
LAB_DEVICE void loads_begin() {}
LAB_DEVICE void loads_end() {}
LAB_DEVICE void reads_nothing() {}
LAB_DEVICE u32 uniform(u32 value) { return value; }
template <typename Args>
LAB_DEVICE const Args& loaded_anew(const Args& arguments) {
    return arguments;
}

LAB_DEVICE void block_barrier() { __syncthreads(); }

/// For a launch with the attribute of programmatic stream serialisation; without it this does nothing.
LAB_DEVICE void start_after_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The successor is placed once a thread of every block has been here; its start orders no memory, so it
/// waits for this launch before it looks at any.
LAB_DEVICE void let_successor_start() {
#if __CUDA_ARCH__ >= 900
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
/// Past the near cache: a launch that was placed early may have found a line from before there.
LAB_DEVICE u64 load_of_predecessor(const u64* word) { return load_relaxed_system(word); }
/// The barrier ordered the block's stores before this one, and the release covers what it ordered.
LAB_DEVICE void store_drained_system(u64* flag, u64 value) { store_release_system(flag, value); }
/// The polling load is itself the acquire, and the block barrier after it passes it on: nothing is left to do
/// in acquire_polled_system.
LAB_DEVICE u64 load_polled_system(const u64* flag) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}
LAB_DEVICE void acquire_polled_system() {}
LAB_DEVICE void acquire_behind_barrier() {}

// Volatile keeps these in order with the flag accesses above; without a memory clobber, plain loads of the
// input may still be issued ahead of them.
LAB_DEVICE Vec16 load_bypass(const Vec16* base, u32 slot, u32 index) {
    Vec16 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(base + slot + index));
    return v;
}
LAB_DEVICE void store_bypass(Vec16* base, u32 index, const Vec16& v) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(base + index), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]));
}
LAB_DEVICE Vec16 load_polled_bypass(const Vec16* base, u32 slot, u32 index) {
    return load_bypass(base, slot, index);
}

// Weak or relaxed, and never .nc: another GPU's kernels write there between two calls. Past the near cache,
// or through it; the L2 of an NVIDIA GPU holds what lies in its own memory.
LAB_DEVICE Vec16 load_peer_bypass(const Vec16* tensor, u32 index) { return load_bypass(tensor, 0, index); }
LAB_DEVICE Vec16 load_peer_cached(const Vec16* tensor, u32 index) {
    Vec16 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(tensor + index));
    return v;
}

// Where a tensor starts within 16 bytes is the same for all threads of a launch, so the branches are uniform.

/// In as few loads as the alignment allows: no byte beside the vector is read.
LAB_DEVICE Vec16 load_unaligned(const void* where) {
    const char* bytes = static_cast<const char*>(where);
    const u32 skew = u32(reinterpret_cast<u64>(where)) & 15;
    if (skew == 0) return *reinterpret_cast<const Vec16*>(bytes);
    Vec16 v;
    if (skew % 8 == 0) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            const u64 pair = reinterpret_cast<const u64*>(bytes)[i];
            v.word[2 * i] = u32(pair), v.word[2 * i + 1] = u32(pair >> 32);
        }
    } else if (skew % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) v.word[i] = reinterpret_cast<const u32*>(bytes)[i];
    } else {
        u32 middle[3];
        const u32 first = *reinterpret_cast<const u16*>(bytes);
#pragma unroll
        for (u32 i = 0; i < 3; ++i) middle[i] = reinterpret_cast<const u32*>(bytes + 2)[i];
        const u32 last = *reinterpret_cast<const u16*>(bytes + 14);
        v.word[0] = first | middle[0] << 16;
        v.word[1] = __funnelshift_r(middle[0], middle[1], 16);
        v.word[2] = __funnelshift_r(middle[1], middle[2], 16);
        v.word[3] = middle[2] >> 16 | last << 16;
    }
    return v;
}

/// The same for a store.
LAB_DEVICE void store_unaligned(void* where, const Vec16& v) {
    char* bytes = static_cast<char*>(where);
    const u32 skew = u32(reinterpret_cast<u64>(where)) & 15;
    if (skew == 0) {
        *reinterpret_cast<Vec16*>(bytes) = v;
    } else if (skew % 8 == 0) {
#pragma unroll
        for (u32 i = 0; i < 2; ++i)
            reinterpret_cast<u64*>(bytes)[i] = u64(v.word[2 * i + 1]) << 32 | v.word[2 * i];
    } else if (skew % 4 == 0) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) reinterpret_cast<u32*>(bytes)[i] = v.word[i];
    } else {
        *reinterpret_cast<u16*>(bytes) = u16(v.word[0]);
#pragma unroll
        for (u32 i = 0; i < 3; ++i)
            reinterpret_cast<u32*>(bytes + 2)[i] = __funnelshift_r(v.word[i], v.word[i + 1], 16);
        *reinterpret_cast<u16*>(bytes + 14) = u16(v.word[3] >> 16);
    }
}

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
LAB_DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
LAB_DEVICE float square_root(float value) { return __fsqrt_rn(value); }
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
