// A call without peers: takes its input, stays for `timeout` nanoseconds from then on, writes its output.
#include "../reduce.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void carry(const Call& call) {
    start_after_predecessor();
    let_successor_start();
    const Span message = whole_message(call);
    const u32 vectors = vectors_in<T>(call.count);
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;
    Vec16 mine = {};
    if (first < vectors) mine = load_vector<T, Whole>(call.input, message, first);
    const u64 start = wall_clock() + (mine.word[0] == 1); // the use makes the clock wait for the load
    while (wall_clock() - start < call.timeout) pause();
    for (u32 v = first; v < vectors; v += stride) {
        store_vector<T, Whole>(call.output, message, v, mine);
        if (v + stride < vectors) mine = load_vector<T, Whole>(call.input, message, v + stride);
    }
}

} // namespace lab

LAB_EXPORT(carry)
