#pragma once
// The contract between the kernels and a target. Each target_*.hpp supplies the same names:
//
//   thread_index() block_index()                 where this thread is
//   uniform()                                    a value that all threads of the block have, where that helps
//   loaded_anew()                                the kernel's arguments, where registers are few
//   start_after_predecessor()                    returns once the predecessor's end and stores are seen
//   let_successor_start()                        the next launch of the stream may be placed beside this one
//   block_barrier() block_barrier_draining()     the latter first waits for the wave's own stores
//   load_of_predecessor()                        a word that a former launch of this GPU has stored
//   load_relaxed_system() store_relaxed_system() one word, no ordering
//   store_release_system()                       everything this block stored before it is visible first
//   store_drained_system()                       the same for *_bypass stores, behind block_barrier_draining
//   load_polled_system() acquire_polled_system() the first word load that succeeds, and its acquire
//   acquire_behind_barrier()                     that acquire in the waves that polled nothing
//   load_bypass() store_bypass()                 16 bytes of payload past the caches
//   load_polled_bypass()                         the same, where the data is its own flag
//   load_peer_bypass() load_peer_cached()        16 bytes of a tensor of a peer: past the caches, or not
//   load_unaligned() store_unaligned()           16 bytes of a tensor, aligned to an element or better
//   compare_exchange_device() add_release_device() on a word of this GPU
//   loads_begin() loads_end() reads_nothing()    marks in the machine code for isa.py; no instruction
//   product() square_root()                      rounded to nearest; a product is no half of a fused
//   multiply-add wall_clock() pause()                         ticks of a clock that does not stop; a poll's
//   rest polls_of_a_short_wait                        first polls, in a loop of their own
//
// What *_bypass is given first, a base pointer and for a load the slot's place behind it in vectors, is the
// same in every thread of the block; the index is the thread's own.

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

namespace lab {

/// The unit of staging: four words, always 16-byte aligned.
struct alignas(16) Vec16 {
    u32 word[4];
};

} // namespace lab

#if defined(__CUDACC__)
#include "target_nvidia.hpp"
#elif defined(__HIP__)
#include "target_amd.hpp"
#else
#include "target_host.hpp"
#endif

#ifndef LAB_WORLD
#error "compile with -DLAB_WORLD=2..8: the loops over ranks are unrolled"
#endif

namespace lab {

constexpr u32 world_size = LAB_WORLD;
constexpr u32 max_ranks = 8;
static_assert(world_size >= 2 && world_size <= max_ranks, "world_size is 2..8");

} // namespace lab
