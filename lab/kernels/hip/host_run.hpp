#pragma once
// The host's launcher: lab_host_run plays launches of several ranks to their end under one seeded schedule.
#include "staging.hpp"

namespace lab::host {

struct Launch {
    void (*kernel)(Call);
    Call call; ///< call.rank names the stream
    u64 early; ///< it may start beside its predecessor's end
};

enum Outcome : int { finished = 0, out_of_steps = 1, diverged = 2 };

/// A rank's stream: launches in order; of those running, a second one has started early.
struct Stream {
    std::vector<const Launch*> launches;
    size_t next = 0;
    std::deque<std::unique_ptr<Running>> running;

    bool may_start() const {
        if (next == launches.size()) return false;
        return running.empty() || (launches[next]->early && running.back()->holding == 0);
    }
};

inline Stream streams[max_ranks];

inline void fiber_main() {
    Group& group = *running->group;
    group.launch->kernel(*group.launch->call);
    deliver_all(*running);
    leave_runnable(group, running);
    scheduler.free_stacks.push_back(running->stack);
    if (--group.live == 0) {
        let_successor_start(group);
        --group.launch->live_groups;
    }
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
    const Launch& launch = *stream.launches[stream.next++];
    const Call& call = launch.call;
    auto running = std::make_unique<Running>();
    running->kernel = launch.kernel, running->call = &call;
    running->live_groups = running->holding = call.blocks;
    running->oldest = stream.running.empty();
    for (u32 b = 0; b < call.blocks; ++b) {
        auto group = std::make_unique<Group>();
        group->launch = running.get(), group->lets_successor_start = false;
        group->rank = call.rank, group->block = b, group->live = group->threads = call.threads;
        for (u32 t = 0; t < call.threads; ++t) {
            auto fiber = std::make_unique<Fiber>();
            fiber->stack = take_stack();
            fiber->group = group.get(), fiber->thread = t;
            prepare(fiber.get(), fiber_main);
            group->runnable.push_back(fiber.get());
            running->fibers.push_back(std::move(fiber));
        }
        running->groups.push_back(std::move(group));
    }
    stream.running.push_back(std::move(running));
}

inline void retire_oldest(Stream& stream) {
    stream.running.pop_front();
    if (!stream.running.empty()) stream.running.front()->oldest = true;
}

/// A random block that can run; nullptr when there is none.
inline Group* pick_group() {
    Group* chosen = nullptr;
    u32 seen = 0;
    for (u32 r = 0; r < scheduler.options.ranks; ++r)
        for (auto& launch : streams[r].running)
            for (auto& group : launch->groups)
                if (!group->runnable.empty() && random_u32() % ++seen == 0) chosen = group.get();
    return chosen;
}

/// A store under way arrives in the end, also while its thread stands at a barrier and others wait for a
/// peer.
inline void deliver_at_barrier(Group& group) {
    if (group.at_barrier.empty()) return;
    Fiber& fiber = *group.at_barrier[random_u32() % group.at_barrier.size()];
    if (!fiber.pending.empty()) deliver(fiber, random_u32() % fiber.pending.size());
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
            if (!stream.running.empty() && stream.running.front()->live_groups == 0) {
                retire_oldest(stream);
                group = nullptr;
            }
            if (stream.may_start()) {
                if (scheduler.steps >= options->start_after[r])
                    start_launch(stream);
                else
                    waiting = true;
                group = nullptr;
            }
            any |= !stream.running.empty();
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
        if (group != nullptr && random_u32() % 8 == 0) deliver_at_barrier(*group);
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
        to_fiber(running);
    }
    *steps = scheduler.steps;
    // Fibers of an unfinished run are dropped where they stand; nothing they own outlives their stacks.
    for (Stream& stream : streams)
        for (auto& launch : stream.running)
            for (auto& fiber : launch->fibers)
                if (fiber->group->live) munmap(fiber->stack, stack_bytes);
    if (outcome != finished) scheduler.free_stacks.clear();
    for (Stream& stream : streams) stream = Stream{};
    return outcome;
}
