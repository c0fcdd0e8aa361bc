#include "megatron/base/machine/processor.h"

#include <hwy/targets.h>

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace megatron {
namespace {

bool ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // CPUID leaf 7, EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  if (!has_dots()) return false;  // kernels on tiles round by it; every processor with tiles has it
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;  // the system saves the tiles of who asks
#else
  return false;
#endif
}

}  // namespace

bool has_dots() {
#if defined(__x86_64__)
  constexpr unsigned kAvx512Bf16 = 1u << 5;  // CPUID leaf 7, subleaf 1, EAX
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 &&
         (a & kAvx512Bf16) != 0;
#else
  return false;
#endif
}

bool has_vnni() {
#if defined(__x86_64__)
  constexpr unsigned kAvx512Vnni = 1u << 11;  // CPUID leaf 7, ECX
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & kAvx512Vnni) != 0;
#else
  return false;
#endif
}

bool made_by_amd() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_AMD_ebx && c == signature_AMD_ecx &&
         d == signature_AMD_edx;
#else
  return false;
#endif
}

bool fast_dots() { return has_dots() && made_by_amd(); }

bool has_tiles() {
  static const bool available = ask_for_tiles();
  return available;
}

bool has_integer_tiles() {
#if defined(__x86_64__)
  constexpr unsigned kInt8 = 1u << 25;  // CPUID leaf 7, EDX
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kInt8) != 0 && has_vnni() && has_tiles();
#else
  return false;
#endif
}

const char* name_of(Isa isa) {
  constexpr std::array kNames = {"reference", "avx2", "avx512", "avx512_bf16", "amx"};
  return kNames[static_cast<std::size_t>(isa)];
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
#if HWY_ARCH_X86
  const std::int64_t targets = hwy::SupportedTargets();
  if ((targets & HWY_AVX3) != 0) {
    if (has_tiles()) isas.push_back(Isa::Amx);
    if (fast_dots()) isas.push_back(Isa::Avx512Bf16);
    isas.push_back(Isa::Avx512);
    if (has_dots() && !fast_dots()) isas.push_back(Isa::Avx512Bf16);
  }
  if ((targets & HWY_AVX2) != 0) isas.push_back(Isa::Avx2);
#endif
  isas.push_back(Isa::Reference);
  return isas;
}

}  // namespace megatron
