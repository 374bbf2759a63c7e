// What stands before and after an all-reduce in a model: a kernel that writes a tensor and meets nobody.
#include "../elements.hpp"
#include "../reduce.hpp"

namespace lab {

template <typename T, Rounding R>
LAB_DEVICE void write_input(const Call& call) {
    start_after_predecessor();
    const Span message = whole_message(call);
    for_each(share_of(call, vectors_in<T>(call.count)), [&](u32 v) {
        const Vec16 value = load_bypass(static_cast<const Vec16*>(call.input), 0, v);
        store_vector<T, Ragged>(call.output, message, v, value);
    });
}

} // namespace lab

LAB_EXPORT(write_input)
