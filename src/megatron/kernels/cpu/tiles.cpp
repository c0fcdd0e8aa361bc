#include "megatron/kernels/cpu/tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace megatron::kernels::cpu {
namespace {

bool ask_for_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;  // CPUID leaf 7, EDX
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;  // tile registers are saved only for who asks
#else
  return false;
#endif
}

}  // namespace

bool amx_available() {
  static const bool available = ask_for_amx();
  return available;
}

}  // namespace megatron::kernels::cpu
