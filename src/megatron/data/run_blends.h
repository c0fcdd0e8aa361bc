#pragma once
#include <array>
#include <optional>

#include "megatron/config/data_config.h"
#include "megatron/data/index/blend.h"

namespace megatron::data {

/// What each part reads: by one blend whose pairs data.split shares out, or by a blend of its own, all of it.
struct RunBlends {
  std::array<std::optional<Blend>, 3> parts;  ///< of training, validation, test
  bool of_its_own = false;
};

/// Takes the options that name data (of data.mock_data, blends of nothing), reading the files that some of them name.
/// Throws ConfigError where none or several ways are used at once, or where nothing is named to train on.
RunBlends read_blends(const config::DataConfig& data);

}  // namespace megatron::data
