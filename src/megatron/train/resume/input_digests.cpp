#include "megatron/train/resume/input_digests.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/checkpoint/files/running_hash.h"
#include "megatron/data/run_blends.h"
#include "megatron/interchange/adapters/adapters.h"
#include "megatron/plan/parameters/adapters.h"
#include "megatron/text/tokenizer.h"

namespace megatron::train {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> data_lines(const config::DataConfig& config) {
  const data::RunBlends blends = data::read_blends(config);
  constexpr const char* kParts[] = {"training", "validation", "test"};
  std::vector<std::string> lines;
  for (std::size_t part = 0; part < blends.parts.size(); ++part) {
    if (!blends.parts[part]) continue;
    const data::Blend& blend = *blends.parts[part];
    for (std::size_t i = 0; i < blend.prefixes.size(); ++i) {
      const std::string& prefix = blend.prefixes[i];
      const std::string of_file = fs::is_regular_file(prefix)
                                      ? sampled_digest(prefix)
                                      : sampled_digest(prefix + ".idx") + ", " + sampled_digest(prefix + ".bin");
      lines.push_back(concat(kParts[part], blends.of_its_own ? "" : ", a share", ", ",
                             blend.weights ? blend.weights->at(i) : 0, ", ", of_file));
    }
  }
  return lines;
}

/// The first `count` tokens.
std::string vocabulary_digest(const text::Tokenizer& tokenizer, std::int64_t count) {
  checkpoint::RunningHash hash;
  for (std::int64_t id = 0; id < count; ++id) hash.add(tokenizer.id_to_bytes(static_cast<std::int32_t>(id)));
  return hash.text();
}

/// What cannot be read is unknown here: others say what is wrong with it.
template <class Work>
void if_readable(const Work& work) {
  try {
    work();
  } catch (const std::exception&) {
  }
}

text::Tokenizer tokenizer_of(const config::DataConfig& data) {
  return text::Tokenizer::load(data.tokenizer, data.tokenizer_type, data.vocab_extra_ids);
}

bool has_vocabulary(const text::Tokenizer& tokenizer, const InputDigests& saved) {
  return tokenizer.vocab_size() >= saved.tokens && vocabulary_digest(tokenizer, saved.tokens) == saved.vocabulary;
}

void digest_files(const plan::ResolvedRun& run, InputDigests& digests) {
  if_readable([&] { digests.data = data_lines(run.config.data); });
  const std::string& base = run.config.lora.base;
  if (run.shape.lora && !base.empty())
    if_readable([&] { digests.base = interchange::weights_digest(base, plan::without_adapters(run.shape)); });
}

}  // namespace

std::string sampled_digest(const fs::path& path) {
  constexpr std::size_t kWhole = 1 << 20, kEnd = 64 << 10, kSample = 4 << 10, kSamples = 16;
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  checkpoint::RunningHash hash;
  if (bytes.size() <= kWhole) {
    hash.add(bytes.data(), bytes.size());
  } else {
    hash.add(bytes.data(), kEnd);
    for (std::size_t k = 1; k <= kSamples; ++k) hash.add(bytes.data() + bytes.size() / (kSamples + 1) * k, kSample);
    hash.add(bytes.data() + bytes.size() - kEnd, kEnd);
  }
  return concat(bytes.size(), " bytes, XXH3 ", hash.text());
}

InputDigests digest_inputs(const plan::ResolvedRun& run) {
  InputDigests digests;
  if (!run.config.data.tokenizer.empty())
    if_readable([&] {
      const text::Tokenizer tokenizer = tokenizer_of(run.config.data);
      const std::int64_t tokens = tokenizer.vocab_size();
      digests.vocabulary = vocabulary_digest(tokenizer, tokens);
      digests.tokenizer = tokenizer.fingerprint();
      digests.tokens = tokens;
    });
  digest_files(run, digests);
  return digests;
}

std::string to_text(const InputDigests& digests) {
  return nlohmann::json({{"tokenizer", digests.tokenizer},
                         {"vocabulary", digests.vocabulary},
                         {"tokens", digests.tokens},
                         {"data", digests.data},
                         {"base", digests.base}})
      .dump();
}

std::optional<InputDigests> saved_inputs(const checkpoint::Metadata& metadata) {
  const auto found = metadata.find(kInputs);
  if (found == metadata.end()) return std::nullopt;
  const auto value = try_parse_json(found->second);
  if (!value || !value->is_object()) return std::nullopt;
  try {
    InputDigests digests{.tokenizer = value->at("tokenizer"),
                         .vocabulary = value->at("vocabulary"),
                         .tokens = value->at("tokens"),
                         .data = value->at("data"),
                         .base = value->at("base")};
    if (digests.tokens < 0) return std::nullopt;
    return digests;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

InputChanges compare_inputs(const InputDigests& saved, const plan::ResolvedRun& run) {
  InputChanges changes;
  if (!saved.vocabulary.empty() && !run.config.data.tokenizer.empty())
    if_readable([&] {
      const text::Tokenizer tokenizer = tokenizer_of(run.config.data);
      if (tokenizer.fingerprint() == saved.tokenizer) return;
      changes.other_vocabulary = !has_vocabulary(tokenizer, saved);
      changes.other_splitting = !changes.other_vocabulary;
    });
  InputDigests now;
  digest_files(run, now);
  if (!saved.data.empty() && !now.data.empty()) {
    changes.same_data = saved.data == now.data;
    changes.other_data = !changes.same_data;
  }
  if (!saved.base.empty() && !now.base.empty()) {
    changes.same_base = saved.base == now.base;
    changes.other_base = !changes.same_base;
  }
  return changes;
}

bool has_saved_vocabulary(const InputDigests& saved, const fs::path& folder) {
  bool has = false;
  if_readable([&] { has = has_vocabulary(text::Tokenizer::load(folder), saved); });
  return has;
}

}  // namespace megatron::train
