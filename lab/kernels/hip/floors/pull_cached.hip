// The pull that leaves its peers' lines in the caches: what bypassing them is measured against.
#include "../pull.hip"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void pull_cached(const Call& call) {
    pull_by<T, R, ThroughCaches>(call);
}

} // namespace lab

LAB_EXPORT(pull_cached)
