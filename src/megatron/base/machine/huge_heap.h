#pragma once
#include <cstddef>

namespace megatron {

/// Lets the next `bytes` of the heap lie in huge pages, where the system gives them on request (madvise): a job that
/// fills tables of many megabytes in a few milliseconds would take a fault for each 4 KiB of them. What it frees stays
/// the process's. Call it once, on the main thread, before the tables are made. Changes nothing but with glibc.
void use_huge_pages_for_heap(std::size_t bytes);

}  // namespace megatron
