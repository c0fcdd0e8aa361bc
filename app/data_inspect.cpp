#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/data_jobs.h"
#include "app/json_line.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/config/options.h"
#include "megatron/data/indexed_dataset.h"

namespace megatron::app {
namespace {

struct InfoFlags {
  bool json = false;
  void visit(auto& v) { v("json", json, "Print a JSON object."); }
};

}  // namespace

int data_info(const Args& args) {
  InfoFlags flags;
  const auto words = config::parse_command_line(
      flags, args,
      "megatron data info P [--json]\n\nReads the whole index of P.bin and P.idx, checks it and sums it up.");
  if (words.size() != 1) throw ConfigError(rule_got_fix("data info takes one prefix.", concat(words.size(), " words")));
  const data::IndexedDataset pair(words[0]);
  const std::int64_t tokens = pair.verify();
  std::int64_t shortest = pair.size() == 0 ? 0 : INT64_MAX, longest = 0, empty_documents = 0;
  for (std::int64_t i = 0; i < pair.size(); ++i) {
    shortest = std::min(shortest, pair.length(i));
    longest = std::max(longest, pair.length(i));
  }
  for (std::int64_t i = 0; i < pair.num_documents(); ++i)
    empty_documents += pair.first_sequence(i) == pair.first_sequence(i + 1) ? 1 : 0;
  const double mean = pair.size() == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(pair.size());
  if (flags.json) {
    const nlohmann::ordered_json report{{"prefix", words[0]},
                                        {"dtype", data::dtype_name(pair.dtype())},
                                        {"documents", pair.num_documents()},
                                        {"empty_documents", empty_documents},
                                        {"sequences", pair.size()},
                                        {"tokens", tokens},
                                        {"bin_bytes", pair.bin_bytes()},
                                        {"shortest_sequence", shortest},
                                        {"longest_sequence", longest},
                                        {"mean_sequence", mean},
                                        {"modes", pair.has_modes()}};
    print_json(report);
    return kDone;
  }
  std::printf(
      "%s\n  dtype      %s\n  documents  %lld (%lld empty)\n  sequences  %lld of %lld to %lld tokens, %.1f on "
      "average%s\n"
      "  tokens     %lld (%s)\n",
      words[0].c_str(), data::dtype_name(pair.dtype()), static_cast<long long>(pair.num_documents()),
      static_cast<long long>(empty_documents), static_cast<long long>(pair.size()), static_cast<long long>(shortest),
      static_cast<long long>(longest), mean, pair.has_modes() ? ", with modes" : "", static_cast<long long>(tokens),
      human_bytes(static_cast<double>(pair.bin_bytes())).c_str());
  return kDone;
}

}  // namespace megatron::app
