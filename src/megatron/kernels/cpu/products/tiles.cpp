#include "megatron/kernels/cpu/products/tiles.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace megatron::kernels::cpu {
namespace {

bool ask_for_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // CPUID leaf 7, EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;  // the system saves the tiles of who asks
#else
  return false;
#endif
}

std::atomic<bool>& emulated() {
  static std::atomic<bool> on = false;
  return on;
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

bool emulated_tiles() { return emulated(); }
void emulate_tiles(bool on) { emulated() = on; }

}  // namespace megatron::kernels::cpu
