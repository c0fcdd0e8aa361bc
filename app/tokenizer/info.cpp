#include <nlohmann/json.hpp>

#include "app/json_line.h"
#include "app/print.h"
#include "app/tokenizer/jobs.h"
#include "megatron/config/options.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/tokenizer.h"

namespace megatron::app {
namespace {

constexpr const char* kUsage =
    "megatron tokenizer info T [--json]\n\n"
    "What a tokenizer is made of: its kind, components, special tokens, and the fingerprint that caches of tokens "
    "carry.";

struct Flags {
  std::string tokenizer, tokenizer_type;
  bool json = false;

  void visit(auto& v) {
    v("tokenizer", tokenizer, kTokenizerHelp);
    v("tokenizer_type", tokenizer_type, kTokenizerTypeHelp);
    v("json", json, "Print one JSON object.");
  }
};

using Json = nlohmann::ordered_json;

/// The parts around the model as tokenizer.json has them; of other files their name, which says as much.
Json components(const text::Vocabulary& vocabulary) {
  if (vocabulary.source) return {{"file", vocabulary.source->name}};
  const auto without_vocabulary = [](int, Json::parse_event_t event, const Json& value) {
    return event != Json::parse_event_t::key || (value != "vocab" && value != "merges");
  };
  Json file = Json::parse(text::to_tokenizer_json(vocabulary), without_vocabulary);
  Json parts;
  for (const char* part : {"normalizer", "pre_tokenizer", "model", "post_processor", "decoder"})
    parts[part] = std::move(file.at(part));
  return parts;
}

Json special_tokens(const text::Vocabulary& vocabulary) {
  Json list = Json::array();
  for (const text::SpecialToken& token : vocabulary.specials) {
    Json entry{{"id", token.id}, {"content", token.content}, {"special", token.special}};
    for (const auto& [name, value] : {std::pair("single_word", token.single_word), std::pair("lstrip", token.lstrip),
                                      std::pair("rstrip", token.rstrip), std::pair("normalized", token.normalized)})
      if (value) entry[name] = true;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

int tokenizer_info(const Args& args) {
  Flags flags;
  const auto words = config::parse_command_line(flags, args, kUsage);
  if (flags.tokenizer.empty() && words.size() == 1)
    flags.tokenizer = words[0];
  else
    no_words(words);
  need_option(!flags.tokenizer.empty(), "--tokenizer", "FOLDER");
  const text::Tokenizer tokenizer = text::Tokenizer::load(flags.tokenizer, flags.tokenizer_type);
  const std::string& fingerprint = tokenizer.fingerprint();
  const Json report{{"tokenizer", flags.tokenizer},
                    {"kind", fingerprint.substr(0, fingerprint.find('-'))},
                    {"vocab_size", tokenizer.vocab_size()},
                    {"merges", tokenizer.vocabulary().merges.size()},
                    {"fingerprint", fingerprint},
                    {"components", components(tokenizer.vocabulary())},
                    {"not_applied", tokenizer.vocabulary().not_applied},
                    {"special_tokens", special_tokens(tokenizer.vocabulary())}};
  if (flags.json) {
    print_json(report);
    return kDone;
  }
  for (const char* name : {"tokenizer", "kind", "vocab_size", "merges", "fingerprint"})
    print("{:15} {}\n", name, (report[name].is_string() ? report[name].get<std::string>() : report[name].dump()));
  for (const auto& [name, part] : report["components"].items()) print("{:15} {}\n", name, part.dump());
  if (!report["not_applied"].empty()) print("{:15} {}\n", "not applied", report["not_applied"].dump());
  print("{:15} {}\n", "special_tokens", report["special_tokens"].size());
  for (const Json& token : report["special_tokens"]) print("  {}\n", token.dump());
  return kDone;
}

}  // namespace megatron::app
