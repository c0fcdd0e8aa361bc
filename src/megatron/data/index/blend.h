#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

// Blends of datasets, as Megatron-Core blends them: how they are written, how many samples each set gives, and in which
// order their samples come. Pure arithmetic; blended_dataset.h reads samples by it.
namespace megatron::data {

/// Datasets by their prefixes. Without weights each counts as it is long.
struct Blend {
  std::vector<std::string> prefixes;
  std::optional<std::vector<double>> weights;
};

/// What Megatron-LM's --data-path takes: prefixes, or weights and prefixes in turn ("0.3 A 0.7 B"): an even number of
/// words of which every other one, from the first, is a number. Throws ConfigError where only some of these are
/// numbers, where a weight is not finite and above 0, or its share of their sum is not, and for no words.
Blend parse_blend(const std::vector<std::string>& words);

/// parse_blend() of a file, words separated by white space (--data-args-path).
Blend read_blend_file(const std::filesystem::path& path);

/// A JSON file with the blends of each split (--per-split-data-args-path): {"train": [words], "valid": [words], "test":
/// [words]}. A key that is left out or null gives nothing. Throws ConfigError naming the file and the key.
std::array<std::optional<Blend>, 3> read_split_blends_file(const std::filesystem::path& path);

/// Weights that sum to 1: each divided by numpy's sum of them.
std::vector<double> normalize_weights(std::span<const double> weights);

/// Samples of a blend whose order is to be computed.
struct BlendPlan {
  std::int64_t size = 0;  ///< of the blend
  /// Samples to ask of each set: nothing where the set gives what one pass over it holds.
  std::vector<std::optional<std::int64_t>> requests;
};

/// With weights: a set gives ceil(samples x weight), the blend is the sum of these, and each set is asked for 0.5 %
/// more, as the order may take more of one set than its share. `weights` are normalized.
BlendPlan plan_weighted_blend(std::span<const double> weights, std::int64_t samples);

/// Which set sample k of the blend is from, and which of that set's samples it is. At most 32,766 sets.
struct BlendOrder {
  std::span<std::int16_t> set;
  std::span<std::int64_t> sample;
};

/// Megatron-Core's greedy order: the next sample is from the set that is furthest behind, weight x max(k, 1) - taken;
/// the first of equals. Fills all of `out`. Returns how many samples of each set it takes.
std::vector<std::int64_t> fill_blend_order(std::span<const double> weights, const BlendOrder& out);

/// fill_blend_order() over sets that are taken whole: `sizes` samples of each, `out` having as many as their sum.
void fill_exhaustive_order(std::span<const std::int64_t> sizes, const BlendOrder& out);

}  // namespace megatron::data
