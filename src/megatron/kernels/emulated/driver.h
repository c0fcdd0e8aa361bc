#pragma once
#include <cstdint>
#include <cstring>
#include <memory>

#include "megatron/kernels/phases/kernel.h"

// Runs a kernel's phases on the host, as its device driver does on a GPU: every thread of a block through a phase
// before any of them enters the next.
namespace megatron::kernels::emulated {

/// Which order blocks, and threads within a phase, take from now on; process-wide, 0: ascending. No result may depend
/// on it (tests).
void set_launch_order(std::uint32_t seed);
std::uint32_t launch_order();

struct HostDriver {
  template <class Kernel>
  static void launch(const typename Kernel::Args& args, std::int64_t blocks) {
    using Shared = typename Kernel::Shared;
    using Local = typename Kernel::Local;
    static_assert((Kernel::kThreads & (Kernel::kThreads - 1)) == 0);
    const auto shared = std::make_unique<Memory<Shared>>();
    const auto locals = std::make_unique<Memory<Local>[]>(Kernel::kThreads);
    const std::uint32_t order = launch_order();
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t block = order % 2 == 0 ? i : blocks - 1 - i;
      shared->spoil();
      for (int t = 0; t < Kernel::kThreads; ++t) locals[static_cast<std::size_t>(t)].spoil();
      const auto run = [&]<int kPhase>(int round) {
        for (int t = 0; t < Kernel::kThreads; ++t) {
          const int thread =
              static_cast<int>((static_cast<std::uint32_t>(t) * (2 * order + 1) + order) % Kernel::kThreads);
          Kernel::template run<kPhase>(args, phases::At{block, thread, round}, shared->value(),
                                       locals[static_cast<std::size_t>(thread)].value());
        }
      };
      all_phases<Kernel>(run, Kernel::repeats(args, block));
    }
  }

 private:
  /// Raw memory that holds NaN, of every type, before a block begins.
  template <class T>
  class Memory {
   public:
    void spoil() { std::memset(bytes_, 0xFF, sizeof bytes_); }
    T& value() { return *reinterpret_cast<T*>(bytes_); }

   private:
    alignas(16) unsigned char bytes_[sizeof(T)];
  };

  template <class Kernel, int kFrom, int kTo, class Run>
  static void range(const Run& run, int round) {
    if constexpr (kFrom < kTo) {
      run.template operator()<kFrom>(round);
      range<Kernel, kFrom + 1, kTo>(run, round);
    }
  }
  template <class Kernel, class Run>
  static void all_phases(const Run& run, int repeats) {
    range<Kernel, 0, Kernel::kRepeatFrom>(run, 0);
    for (int round = 0; round < repeats; ++round) range<Kernel, Kernel::kRepeatFrom, Kernel::kRepeatTo>(run, round);
    range<Kernel, Kernel::kRepeatTo, Kernel::kPhases>(run, 0);
  }
};

}  // namespace megatron::kernels::emulated
