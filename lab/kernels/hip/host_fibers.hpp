#pragma once
// GPU threads as fibers on one CPU thread: a stack switch, a seeded scheduler with bursts, block barriers, a
// step limit. Ranks are independent streams of launches: a launch starts when its rank's former one has
// ended or, with Launch::early, once every block of it has let its successor start.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace lab {

struct Call;

namespace host {

constexpr size_t stack_bytes = 64 * 1024; // reserved; touched pages are what it costs
constexpr u32 shared_objects = 64;

struct Group;
struct Running;

/// One word of a payload store that has not reached memory.
struct PendingStore {
    u32* where;
    u32 value;
};

struct Fiber {
    void* stack_pointer;
    char* stack;
    Group* group;
    u32 thread;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
    std::vector<PendingStore> pending;
};

/// A thread block of a running launch.
struct Group {
    Running* launch;
    bool lets_successor_start;
    u32 rank, block, threads;
    u32 live;                     ///< threads that have not returned
    std::vector<Fiber*> runnable; ///< invariant: runnable.size() + at_barrier.size() == live
    std::vector<Fiber*> at_barrier;
    std::vector<u64> shared[shared_objects]; ///< one per LAB_SHARED, made by its first user
};

/// A launch whose blocks have not all ended.
struct Running {
    void (*kernel)(Call);
    const Call* call;
    std::vector<std::unique_ptr<Group>> groups;
    std::vector<std::unique_ptr<Fiber>> fibers;
    u32 live_groups;
    u32 holding; ///< blocks that do not let the successor start yet
    bool oldest; ///< the predecessor has ended
};

struct Options {
    u64 seed, step_limit;
    u64 start_after[8]; ///< step before which a rank launches nothing
    u32 ranks, weak;
};

struct Scheduler {
    Options options;
    u64 steps, random;
    void* main_stack_pointer;
#if !defined(__x86_64__)
    ucontext_t main_context;
#endif
    std::vector<char*> free_stacks;
    u32 burst;     ///< switches left before another block gets a turn
    bool diverged; ///< a thread returned while others of its block wait, or will wait, at a barrier
};

inline Scheduler scheduler;
inline Fiber* running;

/// xorshift64*: a schedule is a function of the seed.
inline u32 random_u32() {
    u64& x = scheduler.random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return u32(x * 0x2545F4914F6CDD1Dull >> 32);
}

#if defined(__x86_64__)
extern "C" void lab_switch_stack(void** save, void* load);
asm(R"(
.text
.globl lab_switch_stack
.hidden lab_switch_stack
.type lab_switch_stack, @function
lab_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
inline void to_scheduler() { lab_switch_stack(&running->stack_pointer, scheduler.main_stack_pointer); }
inline void to_fiber(Fiber* fiber) { lab_switch_stack(&scheduler.main_stack_pointer, fiber->stack_pointer); }
inline void prepare(Fiber* fiber, void (*entry)()) {
    // Entry finds the stack as after a call: 8 beyond a multiple of 16. Six saved registers lie below it.
    void** top = reinterpret_cast<void**>(fiber->stack + stack_bytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fiber->stack_pointer = top;
}
#else
inline void to_scheduler() { swapcontext(&running->context, &scheduler.main_context); }
inline void to_fiber(Fiber* fiber) { swapcontext(&scheduler.main_context, &fiber->context); }
inline void prepare(Fiber* fiber, void (*entry)()) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, entry, 0);
}
#endif

inline void deliver(Fiber& fiber, size_t i) {
    *fiber.pending[i].where = fiber.pending[i].value;
    fiber.pending[i] = fiber.pending.back();
    fiber.pending.pop_back();
}

inline void deliver_all(Fiber& fiber) {
    for (const PendingStore& store : fiber.pending) *store.where = store.value;
    fiber.pending.clear();
}

/// A thread stores to an address once in a call, so the words of its queue may arrive in any order.
inline void store(Vec16* where, const Vec16& value) {
    for (u32 i = 0; i < 4; ++i) {
        if (scheduler.options.weak)
            running->pending.push_back({where->word + i, value.word[i]});
        else
            where->word[i] = value.word[i];
    }
}

inline void yield_point() {
    ++scheduler.steps;
    const u32 dice = random_u32();
    if (!running->pending.empty() && dice % 16 == 0) deliver(*running, (dice >> 8) % running->pending.size());
    if ((dice >> 4) % 8 == 0) to_scheduler();
}

/// A poll that failed: this block's burst ends.
inline void pause() {
    ++scheduler.steps;
    scheduler.burst = 0;
    if (!running->pending.empty()) deliver(*running, random_u32() % running->pending.size());
    to_scheduler();
}

/// One thread of a block is enough to let the successor start, as on NVIDIA.
inline void let_successor_start(Group& group) {
    if (!group.lets_successor_start) --group.launch->holding;
    group.lets_successor_start = true;
}

inline void start_after_predecessor() {
    while (!running->group->launch->oldest) pause();
}

inline void leave_runnable(Group& group, Fiber* fiber) {
    for (Fiber*& entry : group.runnable) {
        if (entry != fiber) continue;
        entry = group.runnable.back();
        group.runnable.pop_back();
        return;
    }
}

inline void block_barrier() {
    Group& group = *running->group;
    leave_runnable(group, running);
    group.at_barrier.push_back(running);
    if (group.live != group.threads) scheduler.diverged = true;
    if (group.at_barrier.size() == group.live) {
        group.runnable = std::move(group.at_barrier);
        group.at_barrier.clear();
    }
    to_scheduler();
}

/// A block's own object of a LAB_SHARED; it starts with rubbish.
inline void* shared_object(u32 id, size_t bytes) {
    if (id >= shared_objects) abort();
    std::vector<u64>& held = running->group->shared[id];
    if (held.empty()) held.assign((bytes + 7) / 8, 0xcdcdcdcdcdcdcdcdull);
    return held.data();
}

} // namespace host
} // namespace lab
