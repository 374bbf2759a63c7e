// The link's share of a call: the whole input to one peer, nothing received, nothing summed.
#include "../reduce.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void push(const Call& call) {
    start_after_predecessor();
    let_successor_start();
    const Span message = whole_message(call);
    const u32 vectors = vectors_in<T>(call.count);
    const u32 first = block_index() * call.threads + thread_index();
    const u32 stride = call.blocks * call.threads;
    Vec16* theirs = packet_slot(call, 1, 0, call.rank);
    for (u32 v = first; v < vectors; v += stride)
        store_bypass(theirs, v, load_vector<T, Whole>(call.input, message, v));
}

} // namespace lab

LAB_EXPORT(push)
