#include "megatron/data/run_blends.h"

#include <string>

#include "megatron/base/error.h"

namespace megatron::data {
namespace {

constexpr const char* kOneWay =
    "data must be named in one way: data.data_path, data.data_args_path, data.train_data_path with valid_data_path and "
    "test_data_path, or data.per_split_data_args_path.";

}  // namespace

RunBlends read_blends(const config::DataConfig& data) {
  const bool of_each = !data.train_data_path.empty() || !data.valid_data_path.empty() || !data.test_data_path.empty();
  const int ways = (data.data_path.empty() ? 0 : 1) + (data.data_args_path.empty() ? 0 : 1) + (of_each ? 1 : 0) +
                   (data.per_split_data_args_path.empty() ? 0 : 1);
  if (data.mock_data) {
    if (ways > 0)
      throw ConfigError(rule_got_fix("data.mock_data must go without options that name data.",
                                     concat(ways, ways == 1 ? " way" : " ways"), "--data.mock_data false"));
    RunBlends mock;
    mock.parts.fill(Blend{});
    return mock;
  }
  if (ways == 0) throw ConfigError(rule_got_fix(kOneWay, "none", "--data-path PREFIX"));
  if (ways > 1) {
    std::string others;  // all but the first way
    const auto leave = [&](bool is_given, const char* flag) {
      if (is_given) others += concat(others.empty() ? "leave " : " and ", flag);
    };
    const bool path = !data.data_path.empty(), file = !data.data_args_path.empty();
    leave(path && file, "--data-args-path");
    leave((path || file) && !data.train_data_path.empty(), "--train-data-path");
    leave((path || file) && !data.valid_data_path.empty(), "--valid-data-path");
    leave((path || file) && !data.test_data_path.empty(), "--test-data-path");
    leave(!data.per_split_data_args_path.empty(), "--per-split-data-args-path");
    throw ConfigError(rule_got_fix(kOneWay, concat(ways, " ways"), others + " out"));
  }
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
