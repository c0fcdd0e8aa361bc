#include "megatron/kernels/cpu/products/tiles.h"

#include <atomic>

namespace megatron::kernels::cpu {
namespace {

std::atomic<bool>& emulated() {
  static std::atomic<bool> on = false;
  return on;
}

}  // namespace

bool emulated_tiles() { return emulated(); }
void emulate_tiles(bool on) { emulated() = on; }

}  // namespace megatron::kernels::cpu
