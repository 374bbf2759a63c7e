#pragma once
// The user's tensors in 16-byte vectors: aligned or not, whole or ragged at the end.
#include "rounding.hpp"
#include "staging.hpp"

namespace lab {

struct Fp32 {
    using Bits = u32;
    static constexpr u32 nan = 0x7fc00000u;
    static LAB_DEVICE float widen(Bits bits) { return float_of(bits); }
    template <Rounding R>
    static LAB_DEVICE u32 narrow(const float (&values)[1], const u32 (&)[1]) {
        const u32 bits = bits_of(values[0]);
        return (bits & 0x7fffffffu) > 0x7f800000u ? nan : bits;
    }
};

struct Fp16 {
    using Bits = u16;
    static constexpr u32 nan = 0x7e007e00u;
    static LAB_DEVICE float widen(Bits bits) { return half_to_float(bits); }
    template <Rounding R>
    static LAB_DEVICE u32 narrow(const float (&values)[2], const u32 (&random)[2]) {
        return pack_fp16<R>(values[0], values[1], random[0], random[1]);
    }
};

struct Bf16 {
    using Bits = u16;
    static constexpr u32 nan = 0x7fc07fc0u;
    static LAB_DEVICE float widen(Bits bits) { return float_of(u32(bits) << 16); }
    template <Rounding R>
    static LAB_DEVICE u32 narrow(const float (&values)[2], const u32 (&random)[2]) {
        return pack_bf16<R>(values[0], values[1], random[0], random[1]);
    }
};

template <typename T>
constexpr u32 per_vector = 16 / sizeof(typename T::Bits);
template <typename T>
constexpr u32 per_word = per_vector<T> / 4;

template <typename T>
LAB_DEVICE typename T::Bits element(const Vec16& v, u32 i) {
    if (sizeof(typename T::Bits) == 4) return typename T::Bits(v.word[i]);
    return typename T::Bits(v.word[i / 2] >> (16 * (i % 2)));
}

/// Elements [first, end) of a tensor of `total`, cut into vectors from `first` on. Empty where first >= end.
struct Span {
    u64 first, end, total;
};

template <typename T>
LAB_DEVICE u32 vectors_in(u64 elements) {
    return u32((elements + per_vector<T> - 1) / per_vector<T>);
}

LAB_DEVICE Span whole_message(const Call& call) { return {0, call.count, call.count}; }

/// What the compiler may rely on: every vector of every span of a call is aligned and has all its elements.
/// Asked once in a call, so that no branch stands between the loads of one vector.
struct Whole {
    static constexpr bool always = true;
};
struct Ragged {
    static constexpr bool always = false;
};

LAB_DEVICE bool aligned(const Call& call) {
    return (reinterpret_cast<u64>(call.input) | reinterpret_cast<u64>(call.output)) % sizeof(Vec16) == 0;
}

/// Run steps(Whole) or steps(Ragged): the same steps, compiled once for each.
template <typename Steps>
LAB_DEVICE void in_shape(bool whole, const Steps& steps) {
    if (whole)
        steps(Whole{});
    else
        steps(Ragged{});
}

/// The vector without its first `elements`; of no meaning behind what is left.
template <typename T>
LAB_DEVICE Vec16 without_first(Vec16 v, u32 elements) {
    const u32 bytes = elements * sizeof(typename T::Bits);
    if (bytes & 8) v = Vec16{{v.word[2], v.word[3], 0, 0}};
    if (bytes & 4) v = Vec16{{v.word[1], v.word[2], v.word[3], 0}};
    if (bytes & 2)
        v = Vec16{{v.word[0] >> 16 | v.word[1] << 16, v.word[1] >> 16 | v.word[2] << 16,
                   v.word[2] >> 16 | v.word[3] << 16, v.word[3] >> 16}};
    return v;
}

/// From a tensor that is shorter than a vector.
template <typename T>
LAB_DEVICE Vec16 load_short(const typename T::Bits* tensor, u64 first, u64 total) {
    Vec16 v = {};
#pragma unroll
    for (u32 i = 0; i < per_vector<T> - 1; ++i) {
        const u32 bits = tensor[first + i < total ? first + i : total - 1];
        v.word[i / per_word<T>] |= bits << (i % per_word<T> * 16);
    }
    return v;
}

/// Vector i of the span; of no meaning beyond its end, and nothing beyond the tensor is read. A vector that
/// the tensor cuts off is taken from its last 16 bytes: one load, as for the others.
template <typename T, typename Shape>
LAB_DEVICE Vec16 load_vector(const void* tensor, const Span& span, u32 i) {
    if (Shape::always) return static_cast<const Vec16*>(tensor)[span.first / per_vector<T> + i];
    const auto* elements = static_cast<const typename T::Bits*>(tensor);
    const u64 first = span.first + u64(i) * per_vector<T>;
    if (span.total < per_vector<T>) return load_short<T>(elements, first, span.total);
    const u64 last = span.total - per_vector<T>;
    if (first <= last) return load_unaligned(elements + first);
    return without_first<T>(load_unaligned(elements + last), u32(first - last));
}

template <typename T>
LAB_DEVICE void store_elements(typename T::Bits* where, u32 elements, Vec16 v) {
#pragma unroll 1
    for (u32 i = 0; i < elements; ++i) {
        where[i] = element<T>(v, 0);
        v = without_first<T>(v, 1);
    }
}

/// What lies beyond the end of the span is not written.
template <typename T, typename Shape>
LAB_DEVICE void store_vector(void* tensor, const Span& span, u32 i, const Vec16& v) {
    if (Shape::always) {
        static_cast<Vec16*>(tensor)[span.first / per_vector<T> + i] = v;
        return;
    }
    const u64 first = span.first + u64(i) * per_vector<T>;
    auto* where = static_cast<typename T::Bits*>(tensor) + first;
    if (first + per_vector<T> <= span.end)
        store_unaligned(where, v);
    else if (first < span.end)
        store_elements<T>(where, u32(span.end - first), v);
}

/// What a thread handles of `vectors` vectors: thread, thread + stride, ... on from the block's first.
struct Share {
    u32 vectors, block, thread, stride;
};

LAB_DEVICE Share share_of(const Call& call, u32 vectors) {
    return {vectors, block_index() * call.threads, thread_index(), call.blocks * call.threads};
}

/// each(i) for every vector i of the share.
template <typename Each>
LAB_DEVICE void for_each(const Share& share, const Each& each) {
    for (u32 i = share.block + share.thread; i < share.vectors; i += share.stride) each(i);
}

/// use(i, load(i)) for every vector i of the share. The loads of the next i are issued before the stores of
/// this one, so that no load waits until a peer has acknowledged them.
///
/// The loop is the block's, the same in all threads, so that what is the same in all of them stays in scalar
/// registers behind it. A thread without a vector in the last round loads another one's. `loads` of 16 bytes
/// make a vector: isa.py counts them.
template <typename Shape, u32 loads, typename Loaded, typename Load, typename Use>
LAB_DEVICE void load_ahead(const Share& share, const Load& load, const Use& use) {
    if (share.block >= share.vectors) return;
    const auto mine = [&](u32 at) {
        const u32 i = at + share.thread;
        return i < share.vectors ? i : share.vectors - 1;
    };
    if constexpr (Shape::always) loads_begin<loads>();
    Loaded held = load(mine(share.block));
    u32 at = share.block;
    // Twice, so that nothing has to be moved, and so waited for, from one set of registers to the other.
#pragma unroll(Shape::always ? 2 : 1)
    for (; at + share.stride < share.vectors; at += share.stride) {
        const Loaded next = load(mine(at + share.stride));
        use(at + share.thread, held);
        held = next;
    }
    if constexpr (Shape::always) loads_end();
    if (at + share.thread < share.vectors) use(at + share.thread, held);
}

/// A call that ends without a result: what it has not written becomes NaN, so that nobody takes what lies
/// there for a sum, not even where nobody looks at the reports (a replayed graph).
template <typename T>
LAB_DEVICE void poison(void* tensor, const Span& span, u32 i) {
    store_vector<T, Ragged>(tensor, span, i, Vec16{{T::nan, T::nan, T::nan, T::nan}});
}

} // namespace lab
