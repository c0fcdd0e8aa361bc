#pragma once
#include <concepts>
#include <string>

namespace megatron {

/// What a profiler that draws ranges (NVIDIA's NVTX) is told by the thread that computes. Ranges of a thread nest.
struct RangeHooks {
  void (*begin)(const char* name);
  void (*end)();
};

/// Null, as it begins: nobody listens. Set before ranks start; what it points to must last.
inline const RangeHooks* range_hooks = nullptr;

/// A range while it lives. Where nobody listens, a comparison with null.
class NamedRange {
 public:
  explicit NamedRange(const char* name) : hooks_(range_hooks) {
    if (hooks_ != nullptr) hooks_->begin(name);
  }
  /// name() -> std::string is called only where somebody listens.
  template <std::invocable Name>
  explicit NamedRange(const Name& name) : hooks_(range_hooks) {
    if (hooks_ != nullptr) hooks_->begin(std::string(name()).c_str());
  }
  ~NamedRange() {
    if (hooks_ != nullptr) hooks_->end();
  }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  const RangeHooks* const hooks_;
};

}  // namespace megatron
