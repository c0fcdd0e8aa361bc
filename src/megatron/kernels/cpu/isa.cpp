#include "megatron/kernels/cpu/isa.h"

#include "megatron/kernels/cpu/targets.h"
// targets.h comes first
#include <hwy/highway.h>

#include <atomic>

#include "megatron/base/error.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

enum class Isa : int { Reference, Avx2, Avx512 };

Isa best_isa() {
#if HWY_ARCH_X86
  const std::int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX3) != 0) return Isa::Avx512;
  if ((targets & HWY_AVX2) != 0) return Isa::Avx2;
#endif
  return Isa::Reference;
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa = best_isa();
  return isa;
}

const char* name_of(Isa isa) { return isa == Isa::Avx512 ? "avx512" : isa == Isa::Avx2 ? "avx2" : "reference"; }

/// Makes HWY_DYNAMIC_DISPATCH choose what `isa` says from now on.
void select(Isa isa) {
#if HWY_ARCH_X86
  hwy::SetSupportedTargetsForTest(isa == Isa::Avx2 ? HWY_AVX2 : 0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
#endif
  chosen_isa() = isa;
}

}  // namespace

std::string instruction_set() { return name_of(chosen_isa()); }

void force_instruction_set(const std::string& name) {
  const Isa previous = chosen_isa();
  select(Isa::Reference);  // shows all that the CPU has again
  const Isa best = best_isa();
  select(previous);
  if (name == "auto") return select(best);
  for (const Isa isa : {Isa::Reference, Isa::Avx2, Isa::Avx512}) {
    if (name == name_of(isa) && isa <= best) return select(isa);
  }
  throw ConfigError(
      rule_got_fix("train.kernels: an instruction set that this machine has: auto, avx512, avx2 or reference.",
                   concat("\"", name, "\"; the best one here is ", name_of(best)), "--train.kernels=auto"));
}

bool cpu::enabled() { return chosen_isa().load(std::memory_order_relaxed) != Isa::Reference; }

}  // namespace megatron::kernels
