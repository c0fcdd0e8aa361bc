#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {

/// The vector instruction sets of this machine.
inline std::vector<std::string> vector_instruction_sets() {
  force_instruction_set("auto");
  const std::string best = instruction_set();
  if (best == "amx") return {"avx2", "avx512", "amx"};
  if (best == "avx512") return {"avx2", "avx512"};
  if (best == "avx2") return {"avx2"};
  return {};
}

/// Runs the test body once on each vector instruction set; skipped where there is none.
class OnEveryInstructionSet : public testing::Test {
 protected:
  template <class Body>
  void on_each(const Body& body) {
    const auto sets = vector_instruction_sets();
    if (sets.empty()) GTEST_SKIP() << "this machine has no AVX2";
    for (const std::string& name : sets) {
      SCOPED_TRACE(name);
      force_instruction_set(name);
      body();
    }
  }
  /// And once more on the plain reference.
  template <class Body>
  void on_each_and_the_reference(const Body& body) {
    for (const std::string& name : vector_instruction_sets()) {
      SCOPED_TRACE(name);
      force_instruction_set(name);
      body();
    }
    SCOPED_TRACE("reference");
    force_instruction_set("reference");
    body();
  }
  void SetUp() override { configure_thread(1); }
  void TearDown() override { force_instruction_set("auto"); }
};

/// The same with AMX's matrix unit emulated: packing, edges, blocks and sums are the code that runs on the hardware.
class OnEmulatedTiles : public OnEveryInstructionSet {
 protected:
  void SetUp() override {
    OnEveryInstructionSet::SetUp();
    cpu::emulate_tiles(true);
  }
  void TearDown() override {
    cpu::emulate_tiles(false);
    OnEveryInstructionSet::TearDown();
  }
};

}  // namespace megatron::kernels
