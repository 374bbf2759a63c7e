#pragma once
// The host's launcher: lab_host_run plays launches of several ranks to their end under one seeded schedule.
#include "staging.hpp"

namespace lab::host {

struct Launch {
    void (*kernel)(Call);
    Call call; ///< call.rank names the stream
};

enum Outcome : int { finished = 0, out_of_steps = 1, diverged = 2 };

/// A rank's stream: launches in order, one running at a time.
struct Stream {
    std::vector<const Launch*> launches;
    size_t next = 0;
    std::vector<std::unique_ptr<Group>> groups;
    std::vector<std::unique_ptr<Fiber>> fibers;
    u32 live_groups = 0;
};

inline Stream streams[max_ranks];

inline void fiber_main() {
    scheduler.starting_kernel(*scheduler.starting_call);
    deliver_all(*running);
    Group& group = *running->group;
    leave_runnable(group, running);
    scheduler.free_stacks.push_back(running->stack);
    if (--group.live == 0) --streams[group.rank].live_groups;
    if (!group.at_barrier.empty()) scheduler.diverged = true;
    to_scheduler();
    abort();
}

inline char* take_stack() {
    if (scheduler.free_stacks.empty()) {
        void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        return static_cast<char*>(memory);
    }
    char* stack = scheduler.free_stacks.back();
    scheduler.free_stacks.pop_back();
    return stack;
}

inline void start_launch(Stream& stream) {
    const Call& call = stream.launches[stream.next++]->call;
    stream.groups.clear();
    stream.fibers.clear();
    stream.live_groups = call.blocks;
    for (u32 b = 0; b < call.blocks; ++b) {
        auto group = std::make_unique<Group>();
        group->rank = call.rank, group->block = b, group->live = group->threads = call.threads;
        memset(group->shared, 0xcd, sizeof group->shared); // shared memory starts with rubbish
        for (u32 t = 0; t < call.threads; ++t) {
            auto fiber = std::make_unique<Fiber>();
            fiber->stack = take_stack();
            fiber->group = group.get(), fiber->thread = t;
            prepare(fiber.get(), fiber_main);
            group->runnable.push_back(fiber.get());
            stream.fibers.push_back(std::move(fiber));
        }
        stream.groups.push_back(std::move(group));
    }
}

/// A random block that can run; nullptr when there is none.
inline Group* pick_group() {
    Group* chosen = nullptr;
    u32 seen = 0;
    for (u32 r = 0; r < scheduler.options.ranks; ++r) {
        if (streams[r].live_groups == 0) continue;
        for (auto& group : streams[r].groups)
            if (!group->runnable.empty() && random_u32() % ++seen == 0) chosen = group.get();
    }
    return chosen;
}

} // namespace lab::host

/// Bytes of a Call, of a Launch and of the Control words, for the caller's mirror of them.
LAB_KERNEL lab_host_sizes(u64* sizes) {
    sizes[0] = sizeof(lab::Call), sizes[1] = sizeof(lab::host::Launch), sizes[2] = sizeof(lab::Control);
    sizes[3] = sizeof(lab::WaitRecord), sizes[4] = sizeof(lab::host::Options);
}

/// Play `count` launches. Returns an Outcome; `steps` receives the steps taken.
extern "C" __attribute__((visibility("default"))) int
lab_host_run(const lab::host::Launch* launches, u64 count, const lab::host::Options* options, u64* steps) {
    using namespace lab;
    using namespace lab::host;
    scheduler.options = *options;
    scheduler.steps = 0, scheduler.burst = 0, scheduler.diverged = false;
    scheduler.random = options->seed * 0x9E3779B97F4A7C15ull + 0x632BE59BD9B4E019ull;
    if (scheduler.random == 0) scheduler.random = 1;
    for (Stream& stream : streams) stream = Stream{};
    for (u64 i = 0; i < count; ++i) streams[launches[i].call.rank].launches.push_back(launches + i);

    Outcome outcome = finished;
    Group* group = nullptr;
    for (;;) {
        bool waiting = false, any = false;
        for (u32 r = 0; r < options->ranks; ++r) {
            Stream& stream = streams[r];
            if (stream.live_groups == 0 && stream.next < stream.launches.size()) {
                if (scheduler.steps >= options->start_after[r])
                    start_launch(stream);
                else
                    waiting = true;
                group = nullptr;
            }
            any |= stream.live_groups != 0;
        }
        if (!any && !waiting) break;
        if (scheduler.steps > options->step_limit) {
            outcome = out_of_steps;
            break;
        }
        // A burst lets one block run far ahead of the others: lengths 1, 2, 4 .. 2048.
        if (group == nullptr || group->live == 0 || group->runnable.empty() || scheduler.burst == 0) {
            group = pick_group();
            scheduler.burst = 1u << random_u32() % 12;
        }
        if (scheduler.diverged) {
            outcome = diverged;
            break;
        }
        if (group == nullptr) { // all ranks that are left start later
            ++scheduler.steps;
            continue;
        }
        --scheduler.burst;
        running = group->runnable[random_u32() % group->runnable.size()];
        Stream& stream = streams[group->rank];
        const Launch& launch = *stream.launches[stream.next - 1];
        scheduler.starting_kernel = launch.kernel, scheduler.starting_call = &launch.call;
        to_fiber(running);
        if (stream.live_groups == 0) group = nullptr;
    }
    *steps = scheduler.steps;
    // Fibers of an unfinished run are dropped where they stand; nothing they own outlives their stacks.
    for (Stream& stream : streams)
        for (auto& fiber : stream.fibers)
            if (outcome != finished && fiber->group->live) munmap(fiber->stack, stack_bytes);
    if (outcome != finished) scheduler.free_stacks.clear();
    for (Stream& stream : streams) stream = Stream{};
    return outcome;
}
