#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/data/jobs.h"
#include "app/data/pass_progress.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/progress.h"
#include "megatron/base/text/printable.h"
#include "megatron/base/timer.h"
#include "megatron/config/options.h"
#include "megatron/corpus/dedup/dedup.h"
#include "megatron/corpus/filter/filter.h"
#include "megatron/corpus/overlap/overlap.h"
#include "megatron/data/files/dataset_folder.h"
#include "megatron/text/open_tokenizer.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

/// What all jobs here have in common.
struct RunFlags {
  int workers = 0;
  std::int64_t max_document_mb = 64;
  std::string progress = "auto";
  bool json = false;

  void visit(auto& v) {
    v.title("how it is done");
    v("workers", workers, "Threads; 0: one per core. The result does not depend on it.");
    v("max_document_mb", max_document_mb, "Maximum document size in 2^20 bytes.");
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::Choices({"auto", "on", "off"}));
    v("json", json, "Print the result as one JSON object.");
  }

  int threads() const { return threads_of(workers, "--workers"); }
  std::size_t max_document_bytes() const {
    if (max_document_mb < 1 || max_document_mb > 2048)
      throw ConfigError(rule_got_fix("--max-document-mb must be 1 to 2048.", concat(max_document_mb),
                                     "--max-document-mb 64 (the default)"));
    return static_cast<std::size_t>(max_document_mb) << 20;
  }
};

/// The documents that all of them read.
struct InputFlags {
  std::vector<std::string> input;
  std::string format = "auto", json_key = "text";

  void visit(auto& v) {
    v.title("what is read");
    v("input", input,
      "JSONL or plain text, also compressed; parquet, Arrow; - is standard input, for jobs that read once.",
      config::Required());
    v("format", format, "Input format, as in `megatron data preprocess`; auto: JSONL by name or content.",
      config::Choices({"auto", "jsonl", "lines", "paragraphs", "file", "pieces"}));
    v("json_key", json_key, "Key of a JSON line that holds its text.");
  }
  data::TextReaderOptions text(const RunFlags& run) const {
    data::TextReaderOptions options{.inputs = data::with_dataset_files(input),
                                    .format = data::text_format_of(format),
                                    .json_key = json_key,
                                    .key_option = "--json-key"};
    options.max_document_bytes = run.max_document_bytes();
    options.limit_option = "--max-document-mb";
    return options;
  }
};

std::string bytes(std::int64_t count) { return human_bytes(static_cast<double>(count)); }

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

struct FilterFlags {
  InputFlags input;
  std::string output, rejected;
  std::int64_t min_tokens = 128;
  std::string tokenizer, tokenizer_type;
  std::vector<std::string> language, block_domains, block_urls;
  std::string url_key = "url";
  std::string on_error = "stop";
  RunFlags run;

  void visit(auto& v) {
    input.visit(v);
    v("url_key", url_key, "Key of a JSON line that holds its URL.");
    v("on_error", on_error, "What a bad line does; skip counts it and continues.", config::Choices({"stop", "skip"}));
    v.title("what goes");
    v("min_tokens", min_tokens, "Drop documents with fewer tokens; 0: none.");
    v("tokenizer", tokenizer, "Tokenizer whose tokens --min-tokens counts; empty: count words.");
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp);
    v("language", language,
      "Languages to keep, by character statistics: english, latin, greek, cyrillic, hebrew, arabic, devanagari, thai, "
      "kana, hangul, han. Empty: all.");
    v("block_domains", block_domains, "Files of domains, one per line, whose pages and subdomains are dropped.");
    v("block_urls", block_urls, "Files of URLs, one per line, that are dropped.");
    v.title("what is written");
    v("output", output, "File for the documents that are kept; compressed where it ends in .gz, .zst or .xz.",
      config::Required());
    v("rejected", rejected, "File for the documents that are dropped: JSON lines with \"rejected\": reason.");
    run.visit(v);
  }
};

int report_filter(const corpus::FilterResult& result, const std::string& url_key, double seconds, bool json) {
  if (result.without_url > 0)
    write_line(stderr,
               formatted("warning: {} of {} documents have no URL (--url-key {}), so no blocklist can block them",
                         result.without_url, result.documents, url_key));
  if (json) {
    nlohmann::ordered_json reasons;
    for (std::size_t i = 0; i < corpus::kReasons; ++i)
      reasons[corpus::reason_name(static_cast<corpus::Reason>(i))] = result.rejected[i];
    const nlohmann::ordered_json report{{"documents", result.documents},
                                        {"kept", result.kept},
                                        {"rejected", reasons},
                                        {"without_url", result.without_url},
                                        {"text_bytes", result.text_bytes},
                                        {"kept_text_bytes", result.kept_text_bytes},
                                        {"output_bytes", result.output_bytes},
                                        {"seconds", seconds}};
    print_json(report);
    return kDone;
  }
  print("{} of {} documents stay ({:.1f} %), {} of {} of text\n", result.kept, result.documents,
        percent(result.kept, result.documents), bytes(result.kept_text_bytes), bytes(result.text_bytes));
  for (std::size_t i = 0; i < corpus::kReasons; ++i)
    if (result.rejected[i] > 0)
      print("  {:9} {}\n", corpus::reason_name(static_cast<corpus::Reason>(i)), result.rejected[i]);
  return kDone;
}

struct DedupFlags {
  InputFlags input;
  std::string output, report;
  double threshold = 0.7;
  std::string shingles = "words", keep = "first";
  int shingle_size = 5, hashes = 0, bands = 0, rows = 0;
  std::uint64_t seed = 1;
  std::int64_t memory_mb = 2048;
  std::string temporary_folder;
  RunFlags run;

  void visit(auto& v) {
    input.visit(v);
    v.title("what goes");
    v("threshold", threshold, "Jaccard similarity above which two documents are duplicates.");
    v("shingles", shingles, "What a shingle is made of.", config::Choices({"words", "characters"}));
    v("shingle_size", shingle_size, "Words or characters of a shingle.");
    v("keep", keep, "Document of a cluster to keep.", config::Choices({"first", "longest"}));
    v.title("what is written");
    v("output", output, "File for the documents that are kept; compressed where it ends in .gz, .zst or .xz.",
      config::Required());
    v("report", report,
      "File with a JSON line for each dropped document: which one is kept instead, and the similarity.");
    v.title("how pairs are found");
    v("hashes", hashes, "Hashes per MinHash signature; 0: 128, or --bands times --rows.");
    v("bands", bands, "Bands per signature; 0: by --hashes and --threshold.");
    v("rows", rows, "Hashes per band; given with --bands.");
    v("seed", seed, "Seed of the signatures.");
    run.visit(v);
    v("memory_mb", memory_mb, "Memory for keys and shingles in 2^20 bytes; the rest goes to temporary files.");
    v("temporary_folder", temporary_folder,
      "Folder of the temporary files; empty: the output's, else the current one.");
  }
};

corpus::DedupOptions dedup_options(const DedupFlags& flags) {
  if (flags.memory_mb < 1 || flags.memory_mb > 1 << 24)
    throw ConfigError(
        rule_got_fix("--memory-mb must be 1 to 16777216.", concat(flags.memory_mb), "--memory-mb 2048 (the default)"));
  corpus::DedupOptions options{.output = flags.output, .report = flags.report, .threshold = flags.threshold};
  options.text = flags.input.text(flags.run);
  options.shingles = {.characters = flags.shingles == "characters", .size = flags.shingle_size};
  if (flags.hashes != 0 && (flags.bands != 0 || flags.rows != 0))
    throw ConfigError(rule_got_fix("--bands and --rows say how many places a signature has.", "also --hashes",
                                   "leave --bands and --rows out"));
  if (flags.hashes != 0) options.hashes = flags.hashes;
  options.bands = flags.bands;
  options.rows = flags.rows;
  options.keep = flags.keep == "longest" ? corpus::KeptDocument::Longest : corpus::KeptDocument::First;
  options.seed = flags.seed;
  options.memory_bytes = static_cast<std::size_t>(flags.memory_mb) << 20;
  if (!flags.temporary_folder.empty()) make_folder(flags.temporary_folder);
  const std::string folder = std::filesystem::path(flags.output).parent_path().string();
  options.temporary_folder = !flags.temporary_folder.empty() ? flags.temporary_folder : folder.empty() ? "." : folder;
  options.workers = flags.run.threads();
  return options;
}

int report_dedup(const corpus::DedupResult& result, double threshold, double seconds, bool json) {
  if (json) {
    const nlohmann::ordered_json report{{"documents", result.documents},
                                        {"kept", result.documents - result.duplicates},
                                        {"duplicates", result.duplicates},
                                        {"clusters", result.clusters},
                                        {"largest_cluster", result.largest_cluster},
                                        {"without_words", result.without_words},
                                        {"candidates", result.candidates},
                                        {"crowded_buckets", result.crowded_buckets},
                                        {"bands", result.bands.bands},
                                        {"rows", result.bands.rows},
                                        {"expected_recall", result.bands.recall(threshold)},
                                        {"spilled", result.spilled},
                                        {"text_bytes", result.text_bytes},
                                        {"output_bytes", result.output_bytes},
                                        {"seconds", seconds}};
    print_json(report);
    return kDone;
  }
  print("{} of {} documents stay; {} duplicates in {} clusters, the largest of {} documents\n",
        result.documents - result.duplicates, result.documents, result.duplicates, result.clusters,
        result.largest_cluster);
  print("  {} bands of {} places find a pair at the threshold with probability {:.3f}; {} of text in {}\n",
        result.bands.bands, result.bands.rows, result.bands.recall(threshold), bytes(result.text_bytes),
        human_duration(seconds));
  return kDone;
}

struct OverlapFlags {
  InputFlags input;
  std::vector<std::string> test;
  std::string test_format = "auto", test_key;
  int ngram = 0, min_ngram = 8;
  std::string report, output;
  std::int64_t remove_chars = 200, min_chars = 200, max_pieces = 10, common = 10;
  RunFlags run;

  void visit(auto& v) {
    input.visit(v);
    v("test", test, "Files of the test set.", config::Required());
    v("test_format", test_format, "Format of the test set; wikitext: articles, squad: its JSON.",
      config::Choices({"auto", "jsonl", "lines", "paragraphs", "file", "pieces", "wikitext", "squad"}));
    v("test_key", test_key, "Key of the test set's texts; empty: text, or question for squad.");
    v.title("what is compared");
    v("ngram", ngram, "Words per n-gram; 0: 8, and 13 with --output.");
    v("min_ngram", min_ngram, "A test document of fewer words than that, and at least these, is one n-gram.");
    v("common", common, "Ignore n-grams that the training text has at least this often; 0: none.", "key-threshold");
    v.title("what is written");
    v("report", report, "File with a JSON line for each test document: its n-grams and those found.");
    v("output", output, "File for the training text without what it shares with the test set.");
    v.title("with --output: what is taken out");
    v("remove_chars", remove_chars, "Characters to remove on either side of a match, and on to the end of a sentence.",
      "remove-char-each-side");
    v("min_chars", min_chars, "Drop pieces of a cut document with at most so many characters.", "filter-text-char-len");
    v("max_pieces", max_pieces, "Drop documents cut into more pieces.", "splits-count");
    run.visit(v);
  }
};

corpus::OverlapOptions overlap_options(const OverlapFlags& flags) {
  for (const auto& [flag, value] : {std::pair("--remove-chars", flags.remove_chars),
                                    {"--min-chars", flags.min_chars},
                                    {"--max-pieces", flags.max_pieces}})
    if (value < 0)
      throw ConfigError(rule_got_fix(concat(flag, " must be 0 or more."), concat(value), concat(flag, " 0")));
  corpus::OverlapOptions options{.report = flags.report, .output = flags.output, .common = flags.common};
  options.training = flags.input.text(flags.run);
  options.test = {.inputs = flags.test, .format = flags.test_format, .key = flags.test_key};
  options.ngram = flags.ngram != 0 ? flags.ngram : flags.output.empty() ? 8 : 13;
  options.min_ngram = flags.ngram != 0 ? std::min(flags.min_ngram, flags.ngram) : flags.min_ngram;
  options.cut = {.radius = static_cast<std::size_t>(flags.remove_chars),
                 .min_characters = static_cast<std::size_t>(flags.min_chars),
                 .max_pieces = static_cast<std::size_t>(flags.max_pieces)};
  options.workers = flags.run.threads();
  return options;
}

int report_overlap(const corpus::OverlapResult& result, int ngram, bool cut, double seconds, bool json) {
  if (json) {
    nlohmann::ordered_json report{{"ngram", ngram},
                                  {"test_documents", result.test_documents},
                                  {"documents_with_ngrams", result.documents_with_ngrams},
                                  {"documents_touched", result.documents_touched},
                                  {"ngrams", result.ngrams},
                                  {"found", result.found},
                                  {"percent", result.percent()},
                                  {"distinct", result.distinct},
                                  {"distinct_found", result.distinct_found},
                                  {"distinct_percent", percent(result.distinct_found, result.distinct)},
                                  {"training_documents", result.training_documents},
                                  {"training_words", result.training_words},
                                  {"seconds", seconds}};
    if (cut)
      report["cut"] = {{"common_phrases", result.common_phrases},
                       {"matched", result.matched},
                       {"trimmed", result.trimmed},
                       {"split", result.split},
                       {"emptied", result.emptied},
                       {"shattered", result.shattered},
                       {"pieces", result.pieces}};
    print_json(report);
    return kDone;
  }
  print("{:.2f} % of the test set's {}-grams occur in the training text ({} of {}); {} of {} documents\n",
        result.percent(), ngram, result.found, result.ngrams, result.documents_touched, result.documents_with_ngrams);
  if (cut)
    print("{} of {} training documents were cut: {} trimmed, {} split, {} dropped\n", result.matched,
          result.training_documents, result.trimmed, result.split, result.emptied + result.shattered);
  return kDone;
}

}  // namespace

int data_filter(const Args& args) {
  FilterFlags flags;
  no_words(config::parse_command_line(
      flags, args,
      "megatron data filter --input F… --output F [OPTION]…\n\n"
      "Drops documents that are too short, in other languages or from unwanted sites; keeps the others as they are."));
  need_option(!flags.input.input.empty(), "--input");
  refuse_without(!flags.tokenizer_type.empty() && flags.tokenizer.empty(), "--tokenizer-type", "--tokenizer");
  refuse_without(!flags.tokenizer.empty() && flags.min_tokens == 0, "--tokenizer", "--min-tokens");
  refuse_without(flags.url_key != FilterFlags().url_key && flags.block_domains.empty() && flags.block_urls.empty(),
                 "--url-key", "--block-domains or --block-urls");
  const auto mode = Progress::mode_of(flags.run.progress);
  std::optional<text::Tokenizer> tokenizer;
  if (!flags.tokenizer.empty()) tokenizer = text::open_tokenizer(flags.tokenizer, flags.tokenizer_type);
  corpus::FilterOptions options{.output = flags.output, .rejected = flags.rejected, .min_tokens = flags.min_tokens};
  options.text = flags.input.text(flags.run);
  options.tokenizer = tokenizer ? &*tokenizer : nullptr;
  options.languages = flags.language;
  options.url_key = flags.url_key;
  options.block_domains = flags.block_domains;
  options.block_urls = flags.block_urls;
  options.skip_bad_lines = flags.on_error == "skip";
  options.workers = flags.run.threads();
  const Stopwatch since_start;
  PassProgress progress("filter", "bytes", mode);
  const auto result =
      corpus::filter(options, [&](std::int64_t done, std::int64_t total) { progress.update("", done, total); });
  progress.finish();
  return report_filter(result, flags.url_key, since_start.seconds(), flags.run.json);
}

int data_dedup(const Args& args) {
  DedupFlags flags;
  no_words(config::parse_command_line(
      flags, args,
      "megatron data dedup --input F… --output F [OPTION]…\n\n"
      "Keeps one of the documents that are nearly the same: MinHash finds pairs, each is compared exactly."));
  need_option(!flags.input.input.empty(), "--input");
  const auto mode = Progress::mode_of(flags.run.progress);
  const corpus::DedupOptions options = dedup_options(flags);
  const Stopwatch since_start;
  PassProgress progress("dedup", "bytes", mode);
  const auto result = corpus::deduplicate(
      options, [&](const char* pass, std::int64_t done, std::int64_t total) { progress.update(pass, done, total); });
  progress.finish();
  return report_dedup(result, flags.threshold, since_start.seconds(), flags.run.json);
}

int data_overlap(const Args& args) {
  OverlapFlags flags;
  no_words(config::parse_command_line(
      flags, args,
      "megatron data overlap --input F… --test F… [--output F] [OPTION]…\n\n"
      "How much of a test set's n-grams a training text has; with --output the training text without them."));
  need_option(!flags.input.input.empty(), "--input");
  need_option(!flags.test.empty(), "--test");
  const OverlapFlags usual;
  for (const auto& [flag, set] : {std::pair("--remove-chars", flags.remove_chars != usual.remove_chars),
                                  {"--min-chars", flags.min_chars != usual.min_chars},
                                  {"--max-pieces", flags.max_pieces != usual.max_pieces}})
    refuse_without(set && flags.output.empty(), flag, "--output");
  const auto mode = Progress::mode_of(flags.run.progress);
  const corpus::OverlapOptions options = overlap_options(flags);
  const Stopwatch since_start;
  PassProgress progress("overlap", "bytes", mode);
  const auto result =
      corpus::overlap(options, [&](std::int64_t done, std::int64_t total) { progress.update("", done, total); });
  progress.finish();
  return report_overlap(result, options.ngram, !options.output.empty(), since_start.seconds(), flags.run.json);
}

}  // namespace megatron::app
