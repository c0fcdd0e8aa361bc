#include <array>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/data/jobs.h"
#include "app/data/pass_progress.h"
#include "app/json_line.h"
#include "app/made_folder.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/config/tables/model_kinds.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/index/gpt_index.h"
#include "megatron/data/sample_kinds.h"

namespace megatron::app {
namespace {

struct IndexFlags {
  std::string kind = config::model_kinds().front();
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;
  std::string split = "969,30,1";
  std::vector<std::int64_t> samples;
  double short_seq_prob = 0.1;
  bool one_segment = false;
  std::string output;
  bool json = false;
  std::string progress = "auto";

  void visit(auto& v) {
    v.title("which samples");
    v("kind", kind,
      "Kind of samples; " + config::names_with(&config::ModelTraits::reads_sentences) +
          " need sentences (data preprocess --split-sentences).",
      config::Choices(config::model_kinds()));
    v("seq_length", seq_length, "Tokens per sample.", config::Example{"1024"}, config::Required());
    v("seed", seed, "Seed of the order.");
    v("split", split, "Shares of documents for training, validation and test.");
    v("samples", samples, "Numbers of samples for training, validation and test, such as 1000,50,10.",
      config::Example{"1000,50,10"}, config::Required());
    v("short_seq_prob", short_seq_prob, "bert, t5: share of the samples that aim at a random shorter length.");
    v("one_segment", one_segment, "bert: samples without a second segment.");
    v.title("what is written");
    v("output", output, "Folder to write.", config::Required());
    v("json", json, "Print what was written as one JSON object.");
    v("progress", progress, "bert, t5: progress with rate and ETA; auto: on a terminal.",
      config::Choices({"auto", "on", "off"}));
  }
};

constexpr std::array kParts = {data::SplitPart::Train, data::SplitPart::Valid, data::SplitPart::Test};

nlohmann::ordered_json index_gpt(const IndexFlags& flags, const data::IndexedDataset& pair) {
  const auto ranges = data::split_ranges(flags.split, pair.size());
  const auto spec_of = [&](std::size_t i) {
    return data::GptIndexSpec{.seq_length = flags.seq_length, .seed = flags.seed, .num_samples = flags.samples[i]};
  };
  for (std::size_t i = 0; i < 3; ++i) data::check_split(kParts[i], flags.split, ranges[i], spec_of(i), pair);
  // Of all parts before any is written.
  for (std::size_t i = 0; i < 3; ++i) data::plan_gpt_index(spec_of(i), data::tokens_of(pair, ranges[i]));
  const MadeFolder folder(flags.output);
  nlohmann::ordered_json report = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < 3; ++i) {
    if (ranges[i].size() == 0) continue;
    const std::string name = data::split_part_name(kParts[i]), stem = flags.output + "/" + name;
    const auto plan =
        data::build_gpt_index(pair, ranges[i], spec_of(i),
                              {stem + "_document_index.npy", stem + "_sample_index.npy", stem + "_shuffle_index.npy"});
    report[name] = {{"sequences", ranges[i].size()},
                    {"tokens_per_epoch", plan.tokens_per_epoch},
                    {"epochs", plan.epochs},
                    {"separate_last_epoch", plan.separate_last_epoch},
                    {"samples", plan.samples}};
    if (!flags.json)
      print("{}: {} samples in {} passes over {} sequences\n", name, plan.samples, plan.epochs, ranges[i].size());
  }
  return report;
}

nlohmann::ordered_json index_sentences(const IndexFlags& flags, const data::IndexedDataset& pair) {
  const Progress::Mode mode = Progress::mode_of(flags.progress);
  const data::SentenceBounds bounds = data::sample_kind(flags.kind).sentences(flags.seq_length, !flags.one_segment);
  const auto spec_of = [&](std::size_t i) {
    return data::SentenceIndexSpec{.max_tokens = bounds.max_tokens,
                                   .min_sentences = bounds.min_sentences,
                                   .short_probability = flags.short_seq_prob,
                                   .seed = flags.seed,
                                   .num_samples = flags.samples[i]};
  };
  for (std::size_t i = 0; i < 3; ++i) {
    data::check_sentence_index(spec_of(i));
    data::check_sentence_range(pair, data::split_documents(flags.split, kParts[i], pair), spec_of(i));
  }
  const MadeFolder folder(flags.output);
  nlohmann::ordered_json report = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < 3; ++i) {
    const data::DocumentRange range = data::split_documents(flags.split, kParts[i], pair);
    if (range.first == range.last && flags.samples[i] == 0) continue;
    const std::string name = data::split_part_name(kParts[i]);
    PassProgress progress("index " + name, "samples", mode);
    const std::int64_t samples = data::build_sentence_index(
        pair, range, spec_of(i), flags.output + "/" + name + "_sample_index.npy",
        [&](const char* pass, std::int64_t done, std::int64_t total) { progress.update(pass, done, total); });
    progress.finish();
    report[name] = {{"documents", range.last - range.first}, {"samples", samples}};
    if (!flags.json) print("{}: {} samples over {} documents\n", name, samples, range.last - range.first);
  }
  return report;
}

}  // namespace

int data_index(const Args& args) {
  IndexFlags flags;
  const auto words = config::parse_command_line(
      flags, args,
      "megatron data index P --seq-length S --seed N --split 969,30,1 --samples T,V,E --output DIR\n\n"
      "Builds the order of samples ahead of time: DIR/SPLIT_{document,sample,shuffle}_index.npy, of bert and t5\n"
      "DIR/SPLIT_sample_index.npy.");
  if (words.size() != 1)
    throw ConfigError(rule_got_fix("data index takes one prefix.", concat(words.size(), " words"),
                                   "megatron data index PREFIX [OPTION]…"));
  const bool sentences = data::sample_kind(flags.kind).sentences != nullptr;
  refuse_without(flags.short_seq_prob != IndexFlags().short_seq_prob && !sentences, "--short-seq-prob",
                 "--kind " + config::names_with(&config::ModelTraits::reads_sentences, " or "));
  refuse_without(flags.one_segment && !config::model_traits(flags.kind).two_segments, "--one-segment",
                 "--kind " + config::names_with(&config::ModelTraits::two_segments, " or "));
  need_option(!flags.output.empty(), "--output", "FOLDER");
  need_option(flags.seq_length != 0, "--seq-length", "1024");
  if (flags.samples.size() != 3)
    throw ConfigError(rule_got_fix("--samples takes three numbers, such as 1000,50,10.",
                                   concat(flags.samples.size(), " numbers"), "--samples 1000,50,10"));
  const data::IndexedDataset pair(words[0]);
  const nlohmann::ordered_json report = sentences ? index_sentences(flags, pair) : index_gpt(flags, pair);
  if (flags.json) print_json(report);
  return kDone;
}

}  // namespace megatron::app
