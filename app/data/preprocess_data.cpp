#include <glob.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "app/data/jobs.h"
#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"

// Megatron-LM's tools/preprocess_data.py under its own arguments.
namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron preprocess_data --input F --output-prefix P --tokenizer-type T [OPTION]…\n\n"
    "Text to tokens with the arguments of Megatron-LM's tools/preprocess_data.py, as `megatron data preprocess`.";

struct PreprocessArguments {
  std::string input, output_prefix, tokenizer_type, vocab_file, merge_file, tokenizer_model, dataset_impl,
      lang = "english";
  std::vector<std::string> json_keys = {"text"};
  bool split_sentences = false, keep_newlines = false, append_eod = false, keep_sequential_samples = false;
  bool find_optimal_num_workers = false, tokenizer_hf_no_use_fast = false, trust_remote_code = false;
  int workers = 0, partitions = 1, log_interval = 1000;
  std::int64_t vocab_size = 0;

  void visit(auto& v) {
    v("input", input,
      "JSONL, also .gz, .zst and .xz; or a pattern with *, whose files are read in the order of their names.",
      config::Required());
    v("json_keys", json_keys, "Keys of a JSON line whose texts are read.");
    v("split_sentences", split_sentences, "Make each sentence a sequence.");
    v("keep_newlines", keep_newlines, "With --split-sentences: keep the white space between sentences.");
    v("append_eod", append_eod, "End every document with the end-of-text token.");
    v("lang", lang, "Language of --split-sentences: english, german, french or spanish.");
    v("output_prefix", output_prefix, "Prefix of the files to write.", config::Required());
    v("workers", workers, "Threads that tokenize.");
    v("tokenizer_type", tokenizer_type, "Kind of the tokenizer.");
    v("vocab_file", vocab_file, "Vocabulary of GPT2BPETokenizer or BertWordPiece….");
    v("merge_file", merge_file, "Merges of GPT2BPETokenizer.");
    v("tokenizer_model", tokenizer_model, "Folder or file of the others.");
    v("vocab_size", vocab_size, "Numbers of NullTokenizer, the end of documents among them.");
    v("partitions", partitions, "Ignored: the files are the same for any number.");
    v("keep_sequential_samples", keep_sequential_samples, "Ignored: documents keep their order.");
    v("log_interval", log_interval, "Ignored.");
    v("tokenizer_hf_no_use_fast", tokenizer_hf_no_use_fast, "Ignored.");
    v("trust_remote_code", trust_remote_code, "Ignored.");
    v("dataset_impl", dataset_impl, "Gone from Megatron-LM: the files are those of mmap.");
    v("find_optimal_num_workers", find_optimal_num_workers, "Not here: --workers 0 takes every core.");
  }
};

std::string language_of(const std::string& name) {
  static const std::map<std::string, std::string> known = {
      {"english", "en"}, {"german", "de"}, {"french", "fr"}, {"spanish", "es"}};
  const auto found = known.find(name);
  if (found == known.end())
    throw ConfigError(
        rule_got_fix("--lang must be english, german, french or spanish.", name, "--lang english, or leave it out"));
  return found->second;
}

std::string tokenizer_of(const PreprocessArguments& given) {
  if (given.tokenizer_type == "NullTokenizer") return std::to_string(given.vocab_size - 1);
  if (given.vocab_file.empty()) return given.tokenizer_model;
  return given.merge_file.empty() ? given.vocab_file : given.vocab_file + "," + given.merge_file;
}

/// The files that a pattern matches, in the order of their names; what is there under the name itself is no pattern.
Args files_of(const std::string& input) {
  std::error_code unknown;
  if (input.find_first_of("*?[") == std::string::npos || std::filesystem::exists(input, unknown)) return {input};
  ::glob_t found{};
  ::glob(input.c_str(), 0, nullptr, &found);
  Args files;
  for (std::size_t i = 0; i < found.gl_pathc; ++i) {
    const std::string file = found.gl_pathv[i];
    files.push_back(file.starts_with('-') ? "./" + file : file);  // no option
  }
  ::globfree(&found);
  if (files.empty())
    throw ConfigError(rule_got_fix("--input must be a file, or a pattern that some match.", input + ", which none does",
                                   "--input FILE, or in quotes a pattern such as 'FOLDER/*.jsonl'"));
  return files;
}

}  // namespace

int preprocess_data(const Args& args) {
  PreprocessArguments given;
  const Args rest = config::parse_command_line(given, args, kUsage);
  if (!rest.empty())
    throw ConfigError(rule_got_fix("preprocess_data takes options alone.", rest[0], "leave '" + rest[0] + "' out"));
  if (given.find_optimal_num_workers)
    throw ConfigError(rule_got_fix("preprocess_data searches no number of workers.", "--find-optimal-num-workers",
                                   "--workers 0, one per core"));
  if (!given.dataset_impl.empty())
    throw ConfigError(rule_got_fix("preprocess_data writes the files of mmap alone, as today's Megatron-LM.",
                                   concat("--dataset-impl ", given.dataset_impl), "leave --dataset-impl out"));
  for (const auto& [name, value] : {std::pair("input", given.input), {"output-prefix", given.output_prefix}})
    if (value.empty())
      throw ConfigError(rule_got_fix(concat("--", name, " must be given."), "none", concat("--", name, " PATH")));
  Args words = {"--input"};
  for (const std::string& file : files_of(given.input)) words.push_back(file);
  words.insert(words.end(), {"--output-prefix", given.output_prefix, "--format", "jsonl", "--json-keys"});
  words.insert(words.end(), given.json_keys.begin(), given.json_keys.end());
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--tokenizer", tokenizer_of(given));
  add("--tokenizer-type", given.tokenizer_type);
  add("--workers", std::to_string(given.workers));
  if (given.append_eod) words.emplace_back("--append-eod");
  if (given.split_sentences) {
    words.emplace_back("--split-sentences");
    if (given.keep_newlines) words.emplace_back("--keep-newlines");
    add("--lang", language_of(given.lang));
  }
  return data_preprocess(words);
}

}  // namespace megatron::app
