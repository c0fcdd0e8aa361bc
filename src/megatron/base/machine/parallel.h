#pragma once
#include <cstddef>
#include <functional>

namespace megatron {

/// Calls work(index, worker) once for each index below `count`, on up to `threads` threads, the caller's among them;
/// `worker` < threads says which. The indices are handed out in order, each to whoever is free. Returns when all have
/// ended; after one has thrown, no more are begun, and what the smallest index threw is thrown again: the same as by
/// one thread.
void for_each_on_threads(std::size_t count, int threads,
                         const std::function<void(std::size_t index, std::size_t worker)>& work);

/// Throws std::system_error where the system lets this process have no `count` threads more at one time. libtorch waits
/// for ever for a thread of its pool that could not be started.
void require_threads(int count);

}  // namespace megatron
