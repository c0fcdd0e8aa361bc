#include "app/plan/megatron_args.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

#include "app/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"
#include "megatron/config/megatron/yaml_words.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"
#include "megatron/plan/rules.h"

namespace megatron::app {
namespace {

using Json = nlohmann::ordered_json;

/// WORLD_SIZE=N before the options; other assignments are the shell's and have no meaning here.
int take_world_size(std::vector<std::string>& words, const std::string& file) {
  int world_size = 1;
  while (!words.empty() && !words[0].starts_with("--") && words[0].find('=') != std::string::npos) {
    const std::string word = words[0];
    words.erase(words.begin());
    constexpr std::string_view kName = "WORLD_SIZE=";
    if (!word.starts_with(kName)) continue;
    const auto [end, error] = std::from_chars(word.data() + kName.size(), word.data() + word.size(), world_size);
    if (error != std::errc() || end != word.data() + word.size() || world_size < 1)
      throw ConfigError(rule_got_fix(file + ": WORLD_SIZE must be a number of ranks.", word, "WORLD_SIZE=8"));
  }
  return world_size;
}

Json recipe_json(const config::Fields& fields) {
  Json recipe = Json::object();
  for (const config::Field& field : fields.fields) {
    const config::PathParts parts = config::split_path(field.path);
    std::visit([&](const auto* value) { recipe[parts.section][parts.name] = *value; }, field.value);
  }
  return recipe;
}

Json lines_json(const std::vector<config::MegatronTranslation::Line>& lines, const char* name) {
  Json all = Json::array();
  for (const auto& line : lines) all.push_back({{"words", line.words}, {name, line.text}});
  return all;
}

std::string lines_text(const std::vector<config::MegatronTranslation::Line>& lines, const char* title,
                       const char* arrow) {
  std::string text = lines.empty() ? "" : concat("\n# ", title, "\n");
  for (const auto& line : lines) {
    std::string words = line.words;
    std::ranges::replace(words, '\n', ' ');  // a comment has one line
    text += concat("#   ", words, arrow, line.text, "\n");
  }
  return text;
}

/// `text` as comments after `title`; "" where there is none.
std::string commented(const char* title, const std::string& text) {
  std::string out = text.empty() ? "" : title;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += "#   " + text.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return out;
}

}  // namespace

int plan_megatron_args(const std::string& file, const std::string& program, bool as_json) {
  constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 20;
  std::vector<std::string> words = config::shell_words(read_file(file, kMaxFile), file);
  int world_size = take_world_size(words, file);
  config::RunConfig own;  // the ranks may stand among the words too, as pretrain_* take them
  config::parse_words(config::fields_of(own), config::MegatronArguments(words).own_words(), "");
  if (own.parallel.world_size > 0) world_size = own.parallel.world_size;
  config::MegatronLaunch launch{.world_size = world_size};
  if (const std::string yaml = config::yaml_file_of(words); !yaml.empty()) launch.yaml = read_file(yaml, kMaxFile);
  auto translation = config::translate_megatron_arguments(program, words, launch);
  config::RunConfig& run = translation.config;
  const config::Fields fields = config::fields_of(run);
  config::parse_words(fields, translation.own, "");
  // The vocabulary is not read: any that is large enough stands for it.
  constexpr std::int64_t kSomeVocabulary = 32000;
  const std::string problems =
      plan::broken_rules(run, {.tokenizer_vocab = run.model.vocab_size > 0 ? 0 : kSomeVocabulary});
  const std::string recipe = config::to_toml(fields);
  if (as_json) {
    print_json(Json{{"program", program},
                    {"world_size", world_size},
                    {"recipe", recipe_json(fields)},
                    {"maps", lines_json(translation.maps, "options")},
                    {"ignored", lines_json(translation.ignored, "why")},
                    {"problems", problems}});
    return kDone;
  }
  print_text(concat("# What ", program, " of Megatron-LM would do with ", file, ", as a recipe of ", world_size,
                    world_size == 1 ? " rank.\n" : " ranks.\n") +
             commented("\n# No run can have these values together:\n", problems) + "\n" + recipe +
             lines_text(translation.maps, "What stands for options:", "  ->  ") +
             lines_text(translation.ignored, "What is ignored, and why:", ": "));
  return kDone;
}

}  // namespace megatron::app
