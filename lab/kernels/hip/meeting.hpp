#pragma once
// How a kernel reads its peers' tensors where they lie: it meets the peers before, since other kernels wrote
// them, and after, since other kernels will write them again. The names say the order and the scope.
#include "signal.hpp"

namespace lab {

/// Whatever the kernels ahead on a rank's stream stored, plainly and through its caches, is visible to the
/// blocks of this index on all ranks afterwards. So the flag is a release that writes the caches back: a
/// drained store covers only what went past them.
LAB_DEVICE bool enter_release_acquire_system(const Call& call, const Turn& turn, Algorithm algorithm) {
    return meet<Publishes::everything, Reads::what_peers_published>(call, turn, algorithm, Phase::enter);
}

/// No load of this block from a peer's tensor is under way when that peer goes on: each has returned, since
/// what was made of it has been stored. Nothing is published and nothing is read behind it, so no cache is
/// written back or emptied.
LAB_DEVICE bool leave_drained_system(const Call& call, const Turn& turn, Algorithm algorithm) {
    return meet<Publishes::drained, Reads::nothing>(call, turn, algorithm, Phase::leave);
}

/// The other ranks' registered inputs, in rising order of their ranks.
struct Tensors {
    const void* of[world_size - 1];
};

LAB_DEVICE Tensors inputs_in_rank_order(const Call& call) {
    Tensors inputs;
#pragma unroll
    for (u32 j = 0; j < world_size - 1; ++j) {
        const u64 address = reinterpret_cast<u64>(call.registered[other_rank(call, j)]);
        inputs.of[j] =
            reinterpret_cast<const void*>(u64(uniform(u32(address >> 32))) << 32 | uniform(u32(address)));
    }
    return inputs;
}

/// How a vector of a peer's tensor is read.
struct PastCaches {
    static LAB_DEVICE Vec16 load(const void* tensor, u32 index) {
        return load_peer_bypass(static_cast<const Vec16*>(tensor), index);
    }
};
struct ThroughCaches {
    static LAB_DEVICE Vec16 load(const void* tensor, u32 index) {
        return load_peer_cached(static_cast<const Vec16*>(tensor), index);
    }
};

} // namespace lab
