#include "megatron/interchange/hugging_face/pooling.h"

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/families/json.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxFileOfPooling = std::uint64_t{1} << 20;
constexpr const char *kPoolingFolder = "1_Pooling", *kModules = "modules.json", *kSizes = "sentence_bert_config.json",
                     *kPrompts = "config_sentence_transformers.json";
/// Modes of sentence-transformers' Pooling: as a flag, as a word, and what they are.
constexpr std::tuple<const char*, const char*, TextPooling::Kind> kModes[] = {
    {"pooling_mode_mean_tokens", "mean", TextPooling::Kind::Mean},
    {"pooling_mode_cls_token", "cls", TextPooling::Kind::First},
    {"pooling_mode_max_tokens", "max", TextPooling::Kind::Max}};

[[noreturn]] void refuse_pooling(const fs::path& file, const std::string& rule, const std::string& got) {
  throw ConfigError(rule_got_fix(concat(file.string(), ": ", rule), got,
                                 "serve a model that pools by the mean, the first token or the maximum"));
}

json object_in(const fs::path& file) {
  return families::parse_json_object(read_file(file, kMaxFileOfPooling), file.string());
}

void read_modes(const fs::path& file, TextPooling& pooling) {
  const json config = object_in(file);
  if (!pooling.prompt.empty() && config.value("include_prompt", json()) == json(false))
    refuse_pooling(file, "include_prompt must be true where a prompt is named by default.", "false");
  std::string mode = config.value("pooling_mode", json("")).is_string() ? config.value("pooling_mode", "") : "";
  for (const auto& [name, value] : config.items()) {
    if (!name.starts_with("pooling_mode_") || value != json(true)) continue;
    if (!mode.empty()) refuse_pooling(file, "one mode of pooling must be on.", printable(name));
    mode = name;
  }
  for (const auto& [flag, word, kind] : kModes)
    if (mode == flag || mode == word) {
      pooling.kind = kind;
      return;
    }
  refuse_pooling(file, "the mode of pooling must be mean, cls or max.", printable(mode.empty() ? "none" : mode));
}

/// The path of a module, "" where it says none.
std::string path_of(const json& module) {
  const json path = module.is_object() ? module.value("path", json()) : json();
  return path.is_string() ? path.get<std::string>() : "";
}

/// Whether it is the name of a folder in the folder itself.
bool is_inside(const std::string& path) {
  return !path.empty() && path[0] != '.' && path.find('/') == std::string::npos && path.find('\0') == std::string::npos;
}

/// The modules of a folder, in their order: what is made of the states, by the last part of the class's name.
void read_modules(const fs::path& folder, const fs::path& file, TextPooling& pooling) {
  const json modules = try_parse_json(read_file(file, kMaxFileOfPooling)).value_or(json());
  if (!modules.is_array() || modules.empty()) refuse_pooling(file, "must be a list of modules.", modules.type_name());
  bool pooled = false;
  for (const json& module : modules) {
    const json type = module.is_object() ? module.value("type", json()) : json();
    const std::string name = type.is_string() ? type.get<std::string>() : "";
    const std::string kind = name.substr(name.rfind('.') + 1);
    if (kind == "Transformer" && !pooled) continue;
    if (kind == "Normalize" && pooled) {
      pooling.normalized = true;
      continue;
    }
    if (kind != "Pooling" || pooled)
      refuse_pooling(file, "modules must be Transformer, Pooling, Normalize.", printable(name));
    const std::string inside = path_of(module);
    if (!is_inside(inside)) refuse_pooling(file, "the path of a module must be a folder inside.", printable(inside));
    read_modes(folder / inside / "config.json", pooling);
    pooled = true;
  }
  if (!pooled) refuse_pooling(file, "there must be a Pooling among the modules.", "none");
}

/// How many tokens of a string are read, and whether in lower case.
void read_sizes(const fs::path& file, TextPooling& pooling) {
  const json config = object_in(file);
  const json most = config.value("max_seq_length", json()), lower = config.value("do_lower_case", json());
  if (!most.is_null() && (!most.is_number_integer() || most < 1 || most > (std::int64_t{1} << 30)))
    refuse_pooling(file, "max_seq_length must be 1 or above.", most.dump().substr(0, 60));
  if (!lower.is_null() && !lower.is_boolean())
    refuse_pooling(file, "do_lower_case must be true or false.", printable(lower.dump().substr(0, 60)));
  if (!most.is_null()) pooling.max_tokens = most.get<std::int64_t>();
  pooling.lower_case = lower == json(true);
}

/// The prompt that is taken where none is asked for.
std::string default_prompt(const fs::path& file) {
  const json config = object_in(file);
  const json name = config.value("default_prompt_name", json()), prompts = config.value("prompts", json());
  if (name.is_null()) return "";
  const auto found = name.is_string() && prompts.is_object() ? prompts.find(name.get<std::string>()) : prompts.end();
  if (found == prompts.end() || !found->is_string())
    refuse_pooling(file, "default_prompt_name must be one of prompts.", printable(name.dump().substr(0, 60)));
  return found->get<std::string>();
}

}  // namespace

TextPooling read_pooling(const fs::path& folder) {
  TextPooling pooling;
  const fs::path modules = folder / kModules, alone = folder / kPoolingFolder / "config.json", sizes = folder / kSizes,
                 prompts = folder / kPrompts;
  if (fs::is_regular_file(prompts)) pooling.prompt = default_prompt(prompts);
  if (fs::is_regular_file(modules))
    read_modules(folder, modules, pooling);
  else if (fs::is_regular_file(alone))
    read_modes(alone, pooling);
  if (fs::is_regular_file(sizes)) read_sizes(sizes, pooling);
  return pooling;
}

std::vector<fs::path> pooling_files(const fs::path& folder) {
  std::vector<fs::path> files = {kModules, kSizes, kPrompts, fs::path(kPoolingFolder) / "config.json"};
  if (fs::is_regular_file(folder / kModules)) {
    const json modules = try_parse_json(read_file(folder / kModules, kMaxFileOfPooling)).value_or(json::array());
    for (const json& module : modules)
      if (const std::string path = path_of(module); is_inside(path) && path != kPoolingFolder)
        files.push_back(fs::path(path) / "config.json");
  }
  std::erase_if(files, [&](const fs::path& file) { return !fs::is_regular_file(folder / file); });
  return files;
}

}  // namespace megatron::interchange
