#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "megatron/tasks/task.h"

// What a finished seed leaves in its folder, so that it need not run again.
namespace megatron::finetune {

/// What a seed's best weights score on a further set.
struct SetScores {
  std::string set;  ///< FurtherSet::name
  std::vector<tasks::Metric> metrics;
};

/// What a seed's result depends on: the result of another recipe, or of other files under the same names, is another.
struct SeedOrigin {
  std::string recipe;                              ///< as TOML
  std::map<std::string, std::string> inputs = {};  ///< digests by what was read: data, the tokenizer, weights
};

struct SeedResult {
  std::uint64_t seed = 0;
  std::string task;
  SeedOrigin origin;                   ///< without inputs where an earlier version has written it
  std::int64_t iteration = 0;          ///< of the best weights
  double loss = 0;                     ///< then, of the validation set
  double null_threshold = 0;           ///< SQuAD 2.0
  std::vector<tasks::Metric> metrics;  ///< the one by which they were chosen first
  std::vector<SetScores> further = {};
};

/// OUT/seed_N.
std::filesystem::path seed_folder(const std::filesystem::path& out, std::uint64_t seed);

/// Writes result.json, the last file of a seed's folder, and before it the logits of the validation set.
void write_result(const std::filesystem::path& folder, const SeedResult& result, const std::vector<float>& logits);

/// The result in `folder`; nothing where there is none. Throws ConfigError where the file is no result.
std::optional<SeedResult> read_result(const std::filesystem::path& folder);

/// Writes the logits of a further set, whose folder within the seed's is `set`.
void write_logits(const std::filesystem::path& folder, const std::filesystem::path& set,
                  const std::vector<float>& logits);

/// The logits in a seed's folder, `count` of them: of the validation set that the weights were chosen by, or of a
/// further one. Throws ConfigError where there is another number.
std::vector<float> read_logits(const std::filesystem::path& folder, std::size_t count,
                               const std::filesystem::path& set = {});

/// Writes a task's files of predictions, and its report where it has one, into `folder`.
void write_predictions(const std::filesystem::path& folder, const tasks::Task& task, const std::vector<float>& logits,
                       double null_threshold, const std::string& report);

}  // namespace megatron::finetune
