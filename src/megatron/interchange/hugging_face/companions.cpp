#include "megatron/interchange/hugging_face/companions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/gguf.h"
#include "megatron/base/text/json.h"
#include "megatron/families/json.h"
#include "megatron/interchange/formats.h"
#include "megatron/interchange/gguf_read.h"
#include "megatron/interchange/hugging_face/pooling.h"
#include "megatron/text/files/tokenizer_files.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kGeneration = "generation_config.json";
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{1} << 24;

json read_object(const fs::path& path) {
  return families::parse_json_object(read_file(path, kMaxConfigBytes), path.string());
}

std::string shown(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 100);
}

bool is_token(const json& value) { return value.is_number_integer() && value >= 0 && value < (std::int64_t{1} << 31); }

bool are_tokens(const json& value) {
  if (!value.is_array()) return value.is_null() || is_token(value);
  return std::all_of(value.begin(), value.end(), is_token);
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return is_gguf(folder) ? gguf_has_tokenizer(folder) : text::tokenizer_file(folder).has_value();
}

fs::path companion_folder(const fs::path& folder) {
  const auto& companions = format_of(folder).companions;
  if (companions != nullptr) return companions(folder);
  return has_tokenizer(folder) ? folder : fs::path();
}

TokenIds read_token_ids(const fs::path& folder) {
  if (is_gguf(folder)) return gguf_token_ids(folder);
  TokenIds ids;
  for (const char* file : {kGeneration, "config.json"}) {
    if (!fs::is_regular_file(folder / file)) continue;
    const json object = read_object(folder / file);
    for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"}) {
      const json value = object.value(name, json());
      if (!are_tokens(value))
        throw ConfigError(rule_got_fix(concat((folder / file).string(), ": ", name,
                                              " must be a token, an integer from 0 to 2^31 - 1, or a list of them."),
                                       shown(value), concat("set ", name, " to ids of the tokenizer, or remove it")));
      if (!value.is_null()) ids.emplace(name, value.dump());
    }
  }
  return ids;
}

std::vector<std::int64_t> ids_of(const TokenIds& ids, const std::string& name) {
  const auto found = ids.find(name);
  if (found == ids.end()) return {};
  const json value = try_parse_json(found->second).value_or(json::object());
  if (!are_tokens(value))
    throw ConfigError(rule_got_fix(concat(name, " must be a token or a list of them."), shown(value),
                                   "set it to ids of the tokenizer"));
  return value.is_array() ? value.get<std::vector<std::int64_t>>() : std::vector{value.get<std::int64_t>()};
}

int copy_companions(const fs::path& from, const fs::path& to) {
  int copied = is_gguf(from) ? write_gguf_companions(from, to) : 0;
  std::set<fs::path> names = {"tokenizer.json",
                              "tokenizer_config.json",
                              "special_tokens_map.json",
                              "added_tokens.json",
                              "vocab.json",
                              "merges.txt",
                              "vocab.txt",
                              "encoder.json",
                              "vocab.bpe",
                              "tokenizer.model",
                              "spiece.model",
                              "chat_template.jinja",
                              kGeneration};
  if (const auto file = text::tokenizer_file(from)) names.insert(file->filename());  // it may have any name
  for (const fs::path& file : pooling_files(from)) names.insert(file);
  for (const fs::path& name : names) {
    if (!fs::is_regular_file(from / name)) continue;
    if (name.has_parent_path()) make_folder(to / name.parent_path());
    write_file(to / name, read_file(from / name));
    ++copied;
  }
  const TokenIds ids = read_token_ids(from);
  if (!ids.contains("eos_token_id") || fs::exists(to / kGeneration)) return copied;
  json object = json::object();
  for (const auto& [name, id] : ids) object[name] = parse_json(id);
  write_file(to / kGeneration, object.dump(2) + "\n");
  return copied + 1;
}

void keep_tokenizer(const text::Tokenizer& tokenizer, const fs::path& out, const fs::path& loaded) {
  const auto is_its = [&](const fs::path& folder) {
    try {
      return has_tokenizer(folder) && text::Tokenizer::load(folder).fingerprint() == tokenizer.fingerprint();
    } catch (const ConfigError&) {  // a damaged copy is written anew
      return false;
    }
  };
  if (is_its(out)) return;
  if (!loaded.empty()) {
    const auto from = companion_folder(loaded);
    if (!from.empty() && is_its(from)) copy_companions(from, out);
  }
  if (!is_its(out)) tokenizer.save(out);
}

}  // namespace megatron::interchange
