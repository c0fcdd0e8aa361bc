#pragma once
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace megatron {

/// What an allocator says of memory that it could not give; 0 and "": it does not say.
struct Shortage {
  std::uint64_t wanted = 0;  ///< bytes that were asked for
  // Of a GPU, as CUDA's caching allocator has counted:
  std::string device = {};  ///< "GPU 0"
  std::uint64_t total = 0, free = 0;
  std::uint64_t held = 0;  ///< by tensors of this process
};

/// Memory ran out, and the message says what for.
struct OutOfMemory : std::runtime_error {
  /// `what`: what memory was taken for. `planned` and `fix`: as out_of_memory_text() takes them.
  OutOfMemory(std::string what, Shortage lack, const std::string& planned = "", const std::string& fix = "");

  std::string holds;  ///< "the optimizer's state"
  Shortage shortage;
};

/// A bad_alloc that knows how much was asked for.
class AllocationFailed : public std::bad_alloc {
 public:
  /// `what`: "4096 bytes", a text that outlives the object is not needed.
  explicit AllocationFailed(std::size_t bytes) noexcept;
  const char* what() const noexcept override { return text_; }

 private:
  char text_[64];
};

/// Whether `error` says that memory could not be had: std::bad_alloc, what libtorch's allocators throw, or CUDA, its
/// driver and cuBLAS where they have none for themselves.
bool is_out_of_memory(const std::exception& error);

/// What such an error's message says: "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which …".
Shortage shortage_of(const std::exception& error);

/// What to print of an error that reached the end of a job: its message without libtorch's stack frames, or that memory
/// ran out where it says no more, or what is wrong with a path (path_error.h).
std::string message_of(const std::exception& error);

/// The message about memory that could not be had for `holds`: "the optimizer's state". `planned`: what a rank was to
/// hold in all, where that is known. `fix`: changes that would help; "": those that always do.
std::string out_of_memory_text(const std::string& holds, const Shortage& shortage, const std::string& planned = "",
                               const std::string& fix = "");

/// Does `work`, which takes memory for `what`; an allocation that fails in it is an OutOfMemory that names it. What is
/// an OutOfMemory already keeps its narrower name.
template <class Work>
decltype(auto) taking_memory_for(const std::string& what, Work&& work) {
  try {
    return std::forward<Work>(work)();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    throw OutOfMemory(what, shortage_of(error));
  }
}

}  // namespace megatron
