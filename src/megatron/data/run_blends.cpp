#include "megatron/data/run_blends.h"

#include "megatron/base/error.h"

namespace megatron::data {

RunBlends read_blends(const config::DataConfig& data) {
  const bool of_each = !data.train_data_path.empty() || !data.valid_data_path.empty() || !data.test_data_path.empty();
  const int ways = (data.data_path.empty() ? 0 : 1) + (data.data_args_path.empty() ? 0 : 1) + (of_each ? 1 : 0) +
                   (data.per_split_data_args_path.empty() ? 0 : 1);
  if (ways != 1)
    throw ConfigError(
        rule_got_fix("data must be named in one way: data.data_path, data.data_args_path, data.train_data_path with "
                     "valid_data_path and "
                     "test_data_path, or data.per_split_data_args_path.",
                     ways == 0 ? "none" : concat(ways, " ways"), "--data-path PREFIX"));
  RunBlends blends{.parts = {}, .of_its_own = of_each || !data.per_split_data_args_path.empty()};
  const auto parse = [](const std::vector<std::string>& words) {
    return words.empty() ? std::optional<Blend>() : parse_blend(words);
  };
  if (of_each)
    blends.parts = {parse(data.train_data_path), parse(data.valid_data_path), parse(data.test_data_path)};
  else if (blends.of_its_own)
    blends.parts = read_split_blends_file(data.per_split_data_args_path);
  else
    blends.parts.fill(data.data_args_path.empty() ? parse_blend(data.data_path) : read_blend_file(data.data_args_path));
  if (!blends.parts[0])
    throw ConfigError(rule_got_fix("there must be data to train on.", "none", "--train-data-path PREFIX"));
  return blends;
}

}  // namespace megatron::data
