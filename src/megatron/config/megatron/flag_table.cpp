#include "megatron/config/megatron/flag_table.h"

#include <algorithm>
#include <map>
#include <utility>

namespace megatron::config {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// A row as it is written. Strings made one by one in a table of hundreds take a compiler 20 seconds.
struct Row {
  const char* names;
  FlagKind kind;
  const char *default_value, *choices;
  FlagUse use;
  const char *text, *harmless;
};

constexpr Row kRows[] = {
#define FLAG(names, kind, default_value, choices, use, text, harmless) \
  {names, FlagKind::kind, default_value, choices, FlagUse::use, text, harmless},
#include "megatron/config/megatron/flags/checkpointing.def"
#include "megatron/config/megatron/flags/data.def"
#include "megatron/config/megatron/flags/distributed.def"
#include "megatron/config/megatron/flags/logging.def"
#include "megatron/config/megatron/flags/model.def"
#include "megatron/config/megatron/flags/network.def"
#include "megatron/config/megatron/flags/other.def"
#include "megatron/config/megatron/flags/training.def"
#undef FLAG
};

}  // namespace

const std::vector<MegatronFlag>& megatron_flags() {
  static const std::vector<MegatronFlag> flags = [] {
    std::vector<MegatronFlag> all;
    for (const Row& row : kRows)
      all.push_back({split(row.names, ' '), row.kind, row.default_value, split(row.choices, '|'), row.use, row.text,
                     row.harmless});
    return all;
  }();
  return flags;
}

const MegatronFlag* megatron_flag(std::string_view name) {
  static const std::map<std::string, const MegatronFlag*, std::less<>> by_name = [] {
    std::map<std::string, const MegatronFlag*, std::less<>> all;
    for (const MegatronFlag& flag : megatron_flags())
      for (const std::string& each : flag.names) all.emplace(each, &flag);
    return all;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

std::string_view needed_example(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kExamples[] = {{"num-layers", "12"},
                                                                                {"encoder-num-layers", "12"},
                                                                                {"hidden-size", "768"},
                                                                                {"num-attention-heads", "12"},
                                                                                {"max-position-embeddings", "1024"},
                                                                                {"micro-batch-size", "1"},
                                                                                {"train-iters", "100000"},
                                                                                {"seq-length", "1024"},
                                                                                {"encoder-seq-length", "1024"},
                                                                                {"decoder-seq-length", "128"},
                                                                                {"lr", "1e-4"},
                                                                                {"save-interval", "1000"}};
  for (const auto& [flag, example] : kExamples)
    if (flag == name) return example;
  return "";
}

std::vector<std::string> mapped_paths(const MegatronFlag& flag) {
  return flag.use == FlagUse::Maps ? split(flag.text, ' ') : std::vector<std::string>();
}

}  // namespace megatron::config
