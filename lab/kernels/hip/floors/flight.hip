// One thread a rank sends a vector back and forth, `count` times, in low_latency's way: the data is its own
// flag. What a flight takes is the least that a call on two GPUs can take, for its own data has to make one.
#include "../reduce.hpp"
#include "../signal.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void flight(const Call& call) {
    start_after_predecessor();
    let_successor_start();
    const Turn turn = {};
    Vec16* theirs = packet_slot(call, 1, 0, call.rank);
    const Vec16* mine = packet_slot(call, 0, 0, 1 - call.rank);
    for (u32 i = 1; i <= call.count; ++i) {
        const Vec16 ball = {{i, i, i, i}};
        const auto here = [&] { return load_polled_bypass(mine, 0, 0).word[3] == i; };
        const auto missing = [&] { return Missing{1 - call.rank, i}; };
        if (call.rank == 0) store_bypass(theirs, 0, ball);
        if (!wait_bounded(call, turn, Algorithm::low_latency, Phase::packet, here, missing)) return;
        if (call.rank == 1) store_bypass(theirs, 0, ball);
    }
}

} // namespace lab

LAB_EXPORT(flight)
