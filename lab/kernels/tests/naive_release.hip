// What a release looks like when it is left to the store: up to LLVM 22 the wait after buffer_wbl2 is
// missing. The vector load before it is waited for by its use, so no vector-memory operation is pending at
// the release.
#include "../hip/reduce.hpp"

LAB_KERNEL naive_release(lab::Call call) {
    unsigned long long* flag = lab::flag_word(call, 0, 0, 0, call.rank);
    LAB_ISA_MARK("flag store");
    __hip_atomic_store(flag, call.count, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

LAB_KERNEL fenced_release(lab::Call call) {
    lab::store_release_system(lab::flag_word(call, 0, 0, 0, call.rank), call.count);
}
