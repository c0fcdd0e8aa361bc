#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/data/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "app/terminal.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/config/options.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/pair_summary.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

struct InfoFlags {
  bool json = false;
  void visit(auto& v) { v("json", json, "Print a JSON object."); }
};

nlohmann::ordered_json info_json(const data::IndexedDataset& pair, const data::PairSummary& summary, double mean) {
  nlohmann::ordered_json lengths = nlohmann::ordered_json::array();
  for (std::size_t bin = 0; bin < summary.documents_by_length.size(); ++bin)
    lengths.push_back({{"from", bin == 0 ? 0 : std::int64_t{1} << (bin - 1)},
                       {"to", bin == 0 ? 0 : (std::int64_t{1} << (bin - 1)) * 2 - 1},
                       {"documents", summary.documents_by_length[bin]}});
  return {{"prefix", pair.prefix()},
          {"dtype", data::dtype_name(pair.dtype())},
          {"documents", pair.num_documents()},
          {"empty_documents", summary.empty_documents},
          {"sequences", pair.size()},
          {"tokens", summary.tokens},
          {"bin_bytes", pair.bin_bytes()},
          {"shortest_sequence", summary.shortest_sequence},
          {"longest_sequence", summary.longest_sequence},
          {"mean_sequence", mean},
          {"least_id", summary.least_id},
          {"greatest_id", summary.greatest_id},
          {"modes", pair.has_modes()},
          {"document_lengths", std::move(lengths)}};
}

/// A bar for each power of two, as long as its share of the most frequent one.
void draw_lengths(const std::vector<std::int64_t>& documents_by_length) {
  std::int64_t most = 1;
  for (const std::int64_t documents : documents_by_length) most = std::max(most, documents);
  const int room = std::clamp(terminal_width() - 44, 10, 60);
  print("\n  tokens of a document    documents\n");
  const auto first = std::find_if(documents_by_length.begin(), documents_by_length.end(), [](auto n) { return n > 0; });
  for (auto bin = first; bin != documents_by_length.end(); ++bin) {
    const auto power = bin - documents_by_length.begin();
    const std::int64_t from = power == 0 ? 0 : std::int64_t{1} << (power - 1), to = power == 0 ? 0 : 2 * from - 1;
    std::string bar;
    const double eighths = static_cast<double>(*bin) / static_cast<double>(most) * 8 * room;
    constexpr const char* kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    const auto whole = static_cast<int>(eighths) / 8, part = static_cast<int>(eighths) % 8;
    for (int i = 0; i < whole; ++i) bar += "█";
    bar += *bin > 0 && whole == 0 && part == 0 ? kParts[1] : kParts[part];
    print("  {:9} … {:<9} {:12}  {}\n", from, to, *bin, bar);
  }
}

struct CatFlags {
  std::string range = "0:10";
  std::string tokenizer, tokenizer_type;
  bool json = false;

  void visit(auto& v) {
    v("range", range, "Documents A:B, from A up to but without B; A: and :B are open; A alone is one.");
    v("tokenizer", tokenizer, "Tokenizer folder or file; without it, ids are printed.", "tokenizer-model");
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp);
    v("json", json, "Print one JSON object per document.");
  }
};

/// "A:B" within [0, documents].
std::pair<std::int64_t, std::int64_t> document_range(const std::string& text, std::int64_t documents) {
  const auto fail = [&](const std::string& got) {
    throw ConfigError(rule_got_fix(concat("--range is A:B with 0 <= A <= B, of ", documents, " documents."), got,
                                   concat("--range 0:", documents)));
  };
  const auto number = [&](std::string_view digits) -> std::int64_t {
    const bool right = !digits.empty() && digits.size() <= 18 &&
                       std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!right) fail(text);
    return std::stoll(std::string(digits));
  };
  const std::size_t colon = text.find(':');
  const std::string_view whole = text, from = whole.substr(0, colon);
  const std::int64_t begin = from.empty() && colon != std::string::npos ? 0 : number(from);
  std::int64_t end = begin + 1;
  if (colon != std::string::npos) end = colon + 1 == text.size() ? documents : number(whole.substr(colon + 1));
  if (begin >= documents && documents > 0) fail(text);
  if (end < begin) fail(text);
  return {std::min(begin, documents), std::min(end, documents)};
}

std::vector<std::int32_t> ids_of(const data::IndexedDataset& pair, std::int64_t sequence) {
  // raw() checks the length before memory is taken for it.
  std::vector<std::int64_t> tokens(pair.raw(sequence).size() / data::item_size(pair.dtype()));
  pair.read(sequence, 0, tokens);
  std::vector<std::int32_t> ids;
  for (const std::int64_t token : tokens) {
    if (!std::in_range<std::int32_t>(token))
      throw ConfigError(rule_got_fix("a token id must fit 32 bits.", concat(token, " in sequence ", sequence),
                                     "make the pair again from its text"));
    ids.push_back(static_cast<std::int32_t>(token));
  }
  return ids;
}

std::string words_of(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

void print_document(const data::IndexedDataset& pair, std::int64_t document, const text::Tokenizer* tokenizer,
                    bool json) {
  const std::int64_t first = pair.first_sequence(document), end = pair.first_sequence(document + 1);
  nlohmann::ordered_json sequences = nlohmann::ordered_json::array();
  if (!json) print("--- document {}\n", document);
  for (std::int64_t i = first; i < end; ++i) {
    const std::vector<std::int32_t> ids = ids_of(pair, i);
    if (json) {
      sequences.push_back({{"tokens", ids.size()}});
      if (tokenizer != nullptr)
        sequences.back()["text"] = tokenizer->decode(ids);
      else
        sequences.back()["ids"] = ids;
    } else {
      const std::string text = tokenizer != nullptr ? tokenizer->decode(ids) : words_of(ids);
      print_text(text);
      print_text("\n");
    }
  }
  if (json) print_json(nlohmann::ordered_json{{"document", document}, {"sequences", std::move(sequences)}});
}

}  // namespace

int data_info(const Args& args) {
  InfoFlags flags;
  const auto words = config::parse_command_line(
      flags, args, "megatron data info P [--json]\n\nReads all of P.bin and P.idx, checks it and sums it up.");
  if (words.size() != 1)
    throw ConfigError(
        rule_got_fix("data info takes one prefix.", concat(words.size(), " words"), "megatron data info PREFIX"));
  const data::IndexedDataset pair(words[0]);
  const data::PairSummary summary = data::summarize(pair);
  const double mean = pair.size() == 0 ? 0 : static_cast<double>(summary.tokens) / static_cast<double>(pair.size());
  if (flags.json) {
    print_json(info_json(pair, summary, mean));
    return kDone;
  }
  print(
      "{}\n  dtype      {}\n  documents  {} ({} empty)\n  sequences  {} of {} to {} tokens, {:.1f} on "
      "average{}\n"
      "  tokens     {} ({})\n  ids        {}\n",
      words[0], data::dtype_name(pair.dtype()), pair.num_documents(), summary.empty_documents, pair.size(),
      summary.shortest_sequence, summary.longest_sequence, mean, pair.has_modes() ? ", with modes" : "", summary.tokens,
      human_bytes(static_cast<double>(pair.bin_bytes())),
      summary.greatest_id < summary.least_id ? "none" : concat(summary.least_id, " to ", summary.greatest_id));
  draw_lengths(summary.documents_by_length);
  return kDone;
}

int data_cat(const Args& args) {
  CatFlags flags;
  const auto words =
      config::parse_command_line(flags, args,
                                 "megatron data cat P [--range A:B] [--tokenizer T] [--json]\n\nPrints documents of "
                                 "P.bin and P.idx, a line each sequence: its text, or its ids.");
  if (words.size() != 1)
    throw ConfigError(
        rule_got_fix("data cat takes one prefix.", concat(words.size(), " words"), "megatron data cat PREFIX"));
  const data::IndexedDataset pair(words[0]);
  const auto [first, end] = document_range(flags.range, pair.num_documents());
  std::optional<text::Tokenizer> tokenizer;
  refuse_without(!flags.tokenizer_type.empty() && flags.tokenizer.empty(), "--tokenizer-type", "--tokenizer");
  if (!flags.tokenizer.empty()) tokenizer = text::Tokenizer::load(flags.tokenizer, flags.tokenizer_type);
  for (std::int64_t document = first; document < end; ++document)
    print_document(pair, document, tokenizer ? &*tokenizer : nullptr, flags.json);
  return kDone;
}

}  // namespace megatron::app
