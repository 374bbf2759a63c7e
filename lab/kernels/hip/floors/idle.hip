// Nothing but the hand-over from launch to launch: starts, stays for `timeout` nanoseconds, ends.
#include "../reduce.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void idle(const Call& call) {
    start_after_predecessor();
    let_successor_start();
    if (call.timeout == 0) return;
    const u64 start = wall_clock();
    while (wall_clock() - start < call.timeout) pause();
}

} // namespace lab

LAB_EXPORT(idle)
