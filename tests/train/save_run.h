#pragma once
#include <filesystem>
#include <string>

#include "megatron/checkpoint/checkpoint.h"
#include "megatron/train/engine.h"
#include "megatron/train/resume/run_state.h"

namespace megatron::train::testing {

/// Saves everything that resuming needs under `folder`, and returns when it is done. Collective over the world.
inline void save_run(const std::filesystem::path& folder, const RunState& state, const Engine& engine,
                     const std::string& recipe, int keep_last) {
  checkpoint::save(folder, state.iteration, sharded_tensors(engine), run_metadata(state, engine, recipe),
                   engine.context.world(), keep_last);
}

}  // namespace megatron::train::testing
