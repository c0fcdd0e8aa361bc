#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app/data/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/outputs.h"
#include "megatron/base/progress.h"
#include "megatron/config/options.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/pair_summary.h"

namespace megatron::app {
namespace {

/// Copies documents [first, end) and shows how far it is.
void copy_documents(const data::IndexedDataset& from, std::int64_t first, std::int64_t end,
                    data::IndexedDatasetWriter& to, std::int64_t done, Progress& progress) {
  constexpr std::int64_t kAtOnce = 4096;
  for (std::int64_t i = first; i < end; i += kAtOnce) {
    to.add_documents(from, i, std::min(end, i + kAtOnce));
    progress.update(done + std::min(end, i + kAtOnce) - first);
  }
}

nlohmann::ordered_json report_of(const std::string& prefix, const data::IndexedDatasetWriter& writer) {
  return {{"prefix", prefix},
          {"documents", writer.documents()},
          {"sequences", writer.sequences()},
          {"bin_bytes", writer.bin_bytes()}};
}

void print_report(const nlohmann::ordered_json& report) {
  print("{}: {} documents, {} sequences, {}\n", report["prefix"].get<std::string>(),
        report["documents"].get<long long>(), report["sequences"].get<long long>(),
        human_bytes(report["bin_bytes"].get<double>()));
}

/// Refuses to write pairs over one another or over what is read; makes their folders.
void prepare_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs) {
  const auto files = [](const std::vector<std::string>& prefixes) {
    std::vector<std::string> names;
    for (const std::string& prefix : prefixes) names.insert(names.end(), {prefix + ".bin", prefix + ".idx"});
    return names;
  };
  check_outputs(files(outputs), files(inputs));
  for (const std::string& output : outputs) make_folder(std::filesystem::path(output).parent_path());
}

struct MergeFlags {
  std::string output_prefix;
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v("output_prefix", output_prefix, "Prefix of the pair to write.", config::Required());
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::Choices({"auto", "on", "off"}));
    v("json", json, "Print what was written as one JSON object.");
  }
};

struct SplitFlags {
  std::string output_prefix;
  std::vector<std::int64_t> shares, documents;
  std::vector<std::string> names;
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v("output_prefix", output_prefix, "Beginning of the prefixes to write: P_0, P_1, … or P_NAME.", config::Required());
    v("shares", shares, "Shares of the documents, such as 8,1,1.", config::Example{"8,1,1"});
    v("documents", documents, "Numbers of documents, such as 1000,50; the rest is not written.", config::Example{"1"});
    v("names", names, "Names of the parts instead of 0, 1, ….");
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::Choices({"auto", "on", "off"}));
    v("json", json, "Print what was written as one JSON object.");
  }
};

/// A sum of counts with all of its digits.
std::string whole_number(double sum) {
  return sum < 9e18 ? concat(static_cast<std::int64_t>(sum))
                    : concat("more than ", std::int64_t{9'000'000'000} * 1'000'000'000);
}

/// Where the parts begin, and the end of the last.
std::vector<std::int64_t> bounds_of(const SplitFlags& flags, std::int64_t documents) {
  const bool by_share = !flags.shares.empty();
  if (by_share == !flags.documents.empty())
    throw ConfigError(rule_got_fix("data split needs either --shares or --documents.", by_share ? "both" : "none",
                                   by_share ? "leave --documents out" : "--shares 8,1,1"));
  const std::vector<std::int64_t>& sizes = by_share ? flags.shares : flags.documents;
  double all = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0)
      throw ConfigError(
          rule_got_fix("parts cannot be negative.", concat(size), by_share ? "--shares 8,1,1" : "--documents 1"));
    all += static_cast<double>(size);
  }
  if (all == 0)
    throw ConfigError(rule_got_fix("one part must not be empty.", "only zeros",
                                   by_share ? "--shares 8,1,1" : concat("--documents ", documents)));
  if (!by_share && all > static_cast<double>(documents))
    throw ConfigError(rule_got_fix(concat("the parts may have at most ", documents, " documents."), whole_number(all),
                                   concat("--documents ", documents)));
  std::vector<std::int64_t> bounds = {0};
  double sum = 0;
  for (const std::int64_t size : sizes) {
    sum += static_cast<double>(size);
    bounds.push_back(by_share ? std::llrint(sum / all * static_cast<double>(documents)) : bounds.back() + size);
  }
  return bounds;
}

std::vector<std::string> names_of(const SplitFlags& flags, std::size_t parts) {
  if (!flags.names.empty() && flags.names.size() != parts)
    throw ConfigError(rule_got_fix(concat("--names must name the ", parts, " parts."), concat(flags.names.size()),
                                   "leave --names out (the parts are numbered)"));
  for (const std::string& name : flags.names)
    check_file_name_part("a part's name (--names)", name, "leave --names out (the parts are numbered)");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parts; ++i)
    names.push_back(flags.output_prefix + "_" + (flags.names.empty() ? std::to_string(i) : flags.names[i]));
  for (std::size_t i = 0; i < parts; ++i)
    if (std::find(names.begin() + static_cast<std::ptrdiff_t>(i) + 1, names.end(), names[i]) != names.end())
      throw ConfigError(
          rule_got_fix("--names must differ.", names[i] + " twice", "leave --names out (the parts are numbered)"));
  return names;
}

}  // namespace

int data_merge(const Args& args) {
  MergeFlags flags;
  const auto words = config::parse_command_line(
      flags, args,
      "megatron data merge A B … --output-prefix P\n\nJoins the documents of several pairs into one pair.");
  need_option(!flags.output_prefix.empty(), "--output-prefix", "PREFIX");
  if (words.empty())
    throw ConfigError(rule_got_fix("data merge takes prefixes.", "none", "megatron data merge A B --output-prefix P"));
  std::vector<data::IndexedDataset> pairs;
  std::int64_t documents = 0;
  for (const std::string& word : words) {
    data::summarize(pairs.emplace_back(word));
    documents += pairs.back().num_documents();
  }
  prepare_outputs({flags.output_prefix}, words);
  data::IndexedDatasetWriter writer(flags.output_prefix, pairs[0].dtype());
  Progress progress("merge", "documents", documents, Progress::mode_of(flags.progress));
  for (const data::IndexedDataset& pair : pairs)
    copy_documents(pair, 0, pair.num_documents(), writer, writer.documents(), progress);
  progress.finish();
  const auto report = report_of(flags.output_prefix, writer);
  writer.publish();
  flags.json ? print_json(report) : print_report(report);
  return kDone;
}

int data_split(const Args& args) {
  SplitFlags flags;
  const auto words = config::parse_command_line(
      flags, args,
      "megatron data split P --shares 8,1,1 | --documents 1000,50 --output-prefix Q [--names …]\n\nThe documents of a "
      "pair in their order as several pairs.");
  need_option(!flags.output_prefix.empty(), "--output-prefix", "PREFIX");
  if (words.size() != 1)
    throw ConfigError(rule_got_fix("data split takes one prefix.", concat(words.size(), " words"),
                                   "megatron data split P --shares 8,1,1 --output-prefix Q"));
  const data::IndexedDataset pair(words[0]);
  data::summarize(pair);
  const std::vector<std::int64_t> bounds = bounds_of(flags, pair.num_documents());
  const std::vector<std::string> names = names_of(flags, bounds.size() - 1);
  prepare_outputs(names, words);
  Progress progress("split", "documents", bounds.back(), Progress::mode_of(flags.progress));
  nlohmann::ordered_json reports = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < names.size(); ++i) {
    data::IndexedDatasetWriter writer(names[i], pair.dtype());
    copy_documents(pair, bounds[i], bounds[i + 1], writer, bounds[i], progress);
    reports.push_back(report_of(names[i], writer));
    writer.publish();
  }
  progress.finish();
  if (flags.json) print_json(nlohmann::ordered_json{{"pairs", reports}});
  for (const auto& report : reports)
    if (!flags.json) print_report(report);
  return kDone;
}

}  // namespace megatron::app
