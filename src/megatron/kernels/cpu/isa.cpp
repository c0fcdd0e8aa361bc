#include "megatron/kernels/cpu/isa.h"

#include "megatron/kernels/cpu/targets.h"
// targets.h comes first
#include <hwy/highway.h>

#include <array>
#include <atomic>

#include "megatron/base/error.h"
#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

enum class Isa : int { Reference, Avx2, Avx512, Amx };  // Amx: and AVX512

Isa best_isa() {
#if HWY_ARCH_X86
  const std::int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX3) != 0) return cpu::has_tiles() ? Isa::Amx : Isa::Avx512;
  if ((targets & HWY_AVX2) != 0) return Isa::Avx2;
#endif
  return Isa::Reference;
}

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa = best_isa();
  return isa;
}

const char* name_of(Isa isa) {
  constexpr std::array kNames = {"reference", "avx2", "avx512", "amx"};
  return kNames[static_cast<std::size_t>(isa)];
}

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
  for (const Isa isa : {Isa::Reference, Isa::Avx2, Isa::Avx512, Isa::Amx}) {
    if (name == name_of(isa) && isa <= best) return select(isa);
  }
  throw ConfigError(
      rule_got_fix("train.kernels: an instruction set that this machine has: auto, amx, avx512, avx2 or reference.",
                   concat("\"", name, "\"; the best one here is ", name_of(best)), "--train.kernels=auto"));
}

cpu::TileUnit cpu::tile_unit() {
  if (emulated_tiles()) return TileUnit::Emulated;
  return chosen_isa().load(std::memory_order_relaxed) == Isa::Amx ? TileUnit::Hardware : TileUnit::None;
}

bool cpu::enabled() { return chosen_isa().load(std::memory_order_relaxed) != Isa::Reference; }

}  // namespace megatron::kernels
