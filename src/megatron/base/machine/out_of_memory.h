#pragma once
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace megatron {

/// Memory ran out, and the message says what for.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
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

/// Whether `error` says that memory could not be had: std::bad_alloc, or what libtorch's allocators throw.
bool is_out_of_memory(const std::exception& error);

/// What to print of an error that reached the end of a job: its message without libtorch's stack frames, or that memory
/// ran out where it says no more, or what is wrong with a path (path_error.h).
std::string message_of(const std::exception& error);

/// The message about such an error, `what` being what memory was taken for: "the optimizer's state".
std::string out_of_memory_text(const std::string& what, const std::exception& error);

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
    throw OutOfMemory(out_of_memory_text(what, error));
  }
}

}  // namespace megatron
