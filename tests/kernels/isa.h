#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/kernels/cpu/products/tiles.h"
#include "megatron/kernels/runtime.h"

namespace megatron::kernels {

/// The vector instruction sets of this machine.
inline std::vector<std::string> vector_instruction_sets() {
  std::vector<std::string> names = instruction_sets();
  names.pop_back();  // the reference
  return names;
}

/// Runs the test body once on each vector instruction set; skipped where there is none.
class OnEveryInstructionSet : public ::testing::Test {
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
/// Where the machine has such a unit, or dot products in their place, on_each runs the body once more on it.
class OnEmulatedTiles : public OnEveryInstructionSet {
 protected:
  template <class Body>
  void on_each(const Body& body) {
    cpu::emulate_tiles(true);
    OnEveryInstructionSet::on_each(body);
    cpu::emulate_tiles(false);
    for (const std::string& name : vector_instruction_sets()) {
      if (name != "amx" && name != "avx512_bf16") continue;
      SCOPED_TRACE(name + " itself");
      force_instruction_set(name);
      body();
    }
  }
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
