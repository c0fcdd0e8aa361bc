#pragma once
#include <cstdint>
#include <cstring>
#include <memory>

#include "megatron/kernels/emulated/warp.h"
#include "megatron/kernels/phases/kernel.h"

// Runs a kernel's phases on the host, as its device driver does on a GPU: every thread of a block, or every warp,
// through a phase before any of them enters the next.
namespace megatron::kernels::emulated {

/// Which order blocks, and threads within a phase, take from now on; process-wide, 0: ascending. No result may depend
/// on it (tests).
void set_launch_order(std::uint32_t seed);
std::uint32_t launch_order();

struct HostDriver {
  template <class Kernel>
  static void launch(const typename Kernel::Args& args, std::int64_t blocks) {
    using Shared = typename Kernel::Shared;
    using Local = typename LocalOf<Kernel>::type;
    constexpr std::uint32_t kThreads = LocalOf<Kernel>::kThreads;
    static_assert((kThreads & (kThreads - 1)) == 0);
    const auto extra = static_cast<std::size_t>(phases::extra_bytes_of<Kernel>(args));
    const auto shared = std::make_unique<Memory<Shared>[]>(1 + (extra + sizeof(Shared) - 1) / sizeof(Shared));
    const auto locals = std::make_unique<Memory<Local>[]>(kThreads);
    const std::uint32_t order = launch_order();
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t block = order % 2 == 0 ? i : blocks - 1 - i;
      std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(Shared) + extra);
      for (std::uint32_t t = 0; t < kThreads; ++t) locals[t].spoil();
      const auto run = [&]<int kPhase>(int round) {
        for (std::uint32_t t = 0; t < kThreads; ++t) {
          const std::uint32_t thread = (t * (2 * order + 1) + order) % kThreads;
          Kernel::template run<kPhase>(args, phases::At{block, static_cast<int>(thread), round}, shared[0].value(),
                                       locals[thread].value());
        }
      };
      all_phases<Kernel>(run, [&] {
        if constexpr (phases::OfWarps<Kernel>)
          return locals[0].value().rounds;
        else
          return Kernel::repeats(args, block);
      });
    }
  }

 private:
  template <class Kernel>
  struct LocalOf {
    using type = typename Kernel::Local;
    static constexpr std::uint32_t kThreads = Kernel::kThreads;
  };
  template <phases::OfWarps Kernel>
  struct LocalOf<Kernel> {
    using type = typename Kernel::template Local<HostWarp>;
    static constexpr std::uint32_t kThreads = Kernel::kWarps;
  };

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
  template <class Kernel, class Run, class Repeats>
  static void all_phases(const Run& run, const Repeats& repeats) {
    range<Kernel, 0, Kernel::kRepeatFrom>(run, 0);
    const int rounds = Kernel::kRepeatFrom < Kernel::kRepeatTo ? repeats() : 0;
    for (int round = 0; round < rounds; ++round) range<Kernel, Kernel::kRepeatFrom, Kernel::kRepeatTo>(run, round);
    range<Kernel, Kernel::kRepeatTo, Kernel::kPhases>(run, 0);
  }
};

}  // namespace megatron::kernels::emulated
