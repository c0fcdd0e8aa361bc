#include "megatron/kernels/cpu/isa.h"

#include "megatron/kernels/cpu/targets.h"
// targets.h comes first
#include <hwy/highway.h>

#include <atomic>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/machine/processor.h"
#include "megatron/kernels/cpu/elementwise/rounding.h"
#include "megatron/kernels/cpu/products/quantized_product.h"
#include "megatron/kernels/cpu/products/tiles.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {
namespace {

std::atomic<Isa>& chosen_isa() {
  static std::atomic<Isa> isa = available_isas().front();
  return isa;
}

std::atomic<cpu::Float32Products>& chosen_products() {
  static std::atomic<cpu::Float32Products> products = cpu::Float32Products::OfThisMachine;
  return products;
}

std::atomic<bool>& chosen_emulation() {
  static std::atomic<bool> emulates = false;
  return emulates;
}

bool has_rounding(Isa isa) { return isa > Isa::Avx512 && has_dots(); }

/// Makes HWY_DYNAMIC_DISPATCH choose what `isa` says from now on.
void select(Isa isa) {
#if HWY_ARCH_X86
  hwy::SetSupportedTargetsForTest(isa == Isa::Avx2 ? HWY_AVX2 : 0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
#endif
  chosen_isa() = isa;
  cpu::rounds_by_instruction = has_rounding(isa);
}

}  // namespace

std::atomic<bool> cpu::rounds_by_instruction = has_rounding(chosen_isa());

std::string instruction_set() { return emulates_cuda() ? kCudaEmulated : name_of(chosen_isa()); }

void force_instruction_set(const std::string& name) {
  const Isa previous = chosen_isa();
  select(Isa::Reference);  // shows all that the CPU has again
  const std::vector<Isa> isas = available_isas();
  select(previous);
  chosen_emulation() = name == kCudaEmulated;
  if (name == "auto" || name == kCudaEmulated) return select(isas.front());
  std::string known;
  for (const Isa isa : isas) {
    if (name == name_of(isa)) return select(isa);
    known += concat(known.empty() ? "" : ", ", name_of(isa));
  }
  throw ConfigError(
      rule_got_fix("train.kernels: auto, amx, avx512_bf16, avx512, avx2 or reference, of which the machine must have "
                   "it, or cuda-emulated.",
                   concat("\"", name, "\"; this machine has ", known), "--train.kernels=auto"));
}

std::vector<std::string> instruction_sets() {
  const Isa previous = chosen_isa();
  select(Isa::Reference);  // shows all that the CPU has again
  std::vector<std::string> names;
  for (const Isa isa : available_isas()) names.emplace_back(name_of(isa));
  select(previous);
  return names;
}

cpu::TileUnit cpu::tile_unit() {
  if (emulated_tiles()) return TileUnit::Emulated;
  switch (chosen_isa().load(std::memory_order_relaxed)) {
    case Isa::Amx:
      return TileUnit::Hardware;
    case Isa::Avx512Bf16:
      return TileUnit::Dots;
    default:
      return TileUnit::None;
  }
}

cpu::IntegerUnit cpu::integer_unit() {
  static const bool vnni = has_vnni();
  const Isa isa = chosen_isa().load(std::memory_order_relaxed);
  if (isa == Isa::Reference) return IntegerUnit::Plain;
  return isa >= Isa::Avx512 && vnni ? IntegerUnit::Vnni : IntegerUnit::Avx2;
}

cpu::TileUnit cpu::integer_tiles() {
  if (emulated_tiles()) return TileUnit::Emulated;
  static const bool integers = has_integer_tiles();
  const bool amx = chosen_isa().load(std::memory_order_relaxed) == Isa::Amx;
  return amx && integers ? TileUnit::Hardware : TileUnit::None;
}

bool cpu::own_float32_products() {
  static const bool amd = made_by_amd();
  const Isa isa = chosen_isa().load(std::memory_order_relaxed);
  switch (chosen_products().load(std::memory_order_relaxed)) {
    case Float32Products::Own:
      return isa != Isa::Reference;
    case Float32Products::Library:
      return false;
    default:
      return amd && isa >= Isa::Avx512;
  }
}

void cpu::choose_float32_products(Float32Products products) { chosen_products() = products; }

bool emulates_cuda() { return chosen_emulation().load(std::memory_order_relaxed); }

bool cpu::enabled() { return chosen_isa().load(std::memory_order_relaxed) != Isa::Reference; }

}  // namespace megatron::kernels
