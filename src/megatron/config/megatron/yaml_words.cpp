#include "megatron/config/megatron/yaml_words.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/flag_table.h"
#include "megatron/config/megatron/python_names.h"
#include "megatron/config/megatron/yaml_file.h"

namespace megatron::config {
namespace {

using KeyUse = PythonName::Use;

std::string text_of(const YamlEntry& entry) {
  std::string text;
  for (const YamlScalar& value : entry.values) text += (text.empty() ? "" : " ") + value.text;
  return text;
}

class Words {
 public:
  Words(const std::string& name, int world_size) : name_(name), world_size_(world_size) {}

  YamlWords read(const std::vector<YamlEntry>& entries) {
    for (const YamlEntry& entry : entries) {
      const auto [first, is_new] = by_name_.emplace(entry.key, &entry);
      require(is_new, entry, "must be given in one section alone.",
              is_new ? "" : concat("in line ", first->second->line, " too"), "leave one of the two out");
    }
    network();
    for (const YamlEntry& entry : entries) add(entry);
    if (!errors_.empty()) throw ConfigError(errors_);
    return std::move(result_);
  }

 private:
  void require(bool holds, const YamlEntry& entry, const std::string& rule, const std::string& got,
               const std::string& fix) {
    if (holds) return;
    errors_ += errors_.empty() ? "" : "\n";
    errors_ += rule_got_fix(concat(name_, ":", entry.line, ": ", printable(entry.path()), " ", rule), got, fix);
  }

  const YamlEntry* find(const std::string& key) const {
    const auto found = by_name_.find(key);
    return found == by_name_.end() ? nullptr : found->second;
  }

  static bool is_null(const YamlEntry& entry) {
    return !entry.is_list && (entry.values[0].kind == YamlScalar::Kind::Null || entry.values[0].text.empty());
  }
  bool is_true(const std::string& key) const {
    const YamlEntry* const entry = find(key);
    return entry != nullptr && !entry->is_list && entry->values[0].truth;
  }

  void word(const std::string& text) { result_.words.push_back(text); }
  void ignore(const YamlEntry& entry, const std::string& why) {
    result_.ignored.emplace_back(concat(entry.path(), " ", text_of(entry)), why);
  }

  /// What is derived there from several keys: the activation, and the type in which gradients are summed.
  void network() {
    const YamlEntry* const activation = find("activation_func");
    const std::string name = activation == nullptr || activation->is_list ? "" : activation->values[0].text;
    if (name == "swiglu") word("--swiglu");
    if (name == "squaredrelu") word("--squared-relu");
    const YamlEntry* const bias = find("add_bias_linear");
    const bool has_bias = bias == nullptr || is_null(*bias) || is_true("add_bias_linear");
    if (name == "gelu" && has_bias) word("--no-bias-gelu-fusion");  // the exact function
    const bool known = name == "swiglu" || name == "squaredrelu" || name == "gelu";
    if (!known) {
      static const YamlEntry missing{
          .section = "language_model", .key = "activation_func", .is_list = false, .values = {}, .line = 1};
      const YamlEntry& entry = activation == nullptr ? missing : *activation;
      require(false, entry, "must be swiglu, squaredrelu or gelu.", name.empty() ? "none" : printable(name),
              "activation_func: gelu");
    }
    if (const YamlEntry* const gated = find("gated_linear_unit"))
      require(name == "swiglu" || !is_true("gated_linear_unit"), *gated, "must be false but with swiglu.", "true",
              "gated_linear_unit: false, or activation_func: swiglu");
    if (is_true("bf16") || is_true("accumulate_allreduce_grads_in_fp32")) word("--accumulate-allreduce-grads-in-fp32");
  }

  void add(const YamlEntry& entry) {
    const std::string& name = entry.key;
    if (name == "activation_func" || name == "gated_linear_unit") return;  // see network()
    const std::optional<PythonName> key = yaml_key(name);
    if (!key) return unknown(entry);
    if (is_null(entry)) return;  // as the parser's default
    switch (key->use) {
      case KeyUse::Ignored:
        if (entry.is_list || entry.values[0].kind != YamlScalar::Kind::Bool || entry.values[0].truth)
          ignore(entry, key->text);
        return;
      case KeyUse::Unset:
        return unset(entry, key->text);
      case KeyUse::On:
      case KeyUse::Off:
        return on_or_off(entry, *key);
      case KeyUse::Value:
        return value(entry, key->text);
    }
  }

  void unset(const YamlEntry& entry, const std::string& harmless) {
    const YamlScalar& value = entry.values.empty() ? YamlScalar{} : entry.values[0];
    const bool off = value.kind == YamlScalar::Kind::Bool && !value.truth && harmless == "false";
    require(!entry.is_list && (off || (!harmless.empty() && value.text == harmless)), entry,
            "asks for what is not here.", printable(text_of(entry)),
            concat(entry.key, ": ", harmless.empty() ? "null" : harmless));
  }

  void on_or_off(const YamlEntry& entry, const PythonName& key) {
    const bool is_bool = !entry.is_list && entry.values[0].kind == YamlScalar::Kind::Bool;
    require(is_bool, entry, "must be true or false.", printable(text_of(entry)), concat(entry.key, ": true"));
    if (is_bool && entry.values[0].truth == (key.use == KeyUse::On)) word("--" + key.text);
  }

  void value(const YamlEntry& entry, const std::string& flag) {
    const FlagKind kind = megatron_flag(flag)->kind;
    const bool many = kind == FlagKind::List || kind == FlagKind::ListOrNone || kind == FlagKind::Three;
    std::vector<std::string> values;
    for (const YamlScalar& each : entry.values) {
      require(each.kind == YamlScalar::Kind::Text, entry, "must be a number or text.", printable(each.text),
              concat(entry.key, ": null, or a value"));
      values.push_back(each.text);
    }
    if (flag == "window-size" && values.size() == 2) values = {values[0] + "," + values[1]};
    if (many && !entry.is_list) {  // paths of data in one text
      std::istringstream words(values[0]);
      values.clear();
      for (std::string each; words >> each;) values.push_back(each);
    }
    if (values.empty()) return;
    require(many || values.size() == 1, entry, "must be one value.", concat(values.size(), " values"),
            concat(entry.key, ": ", printable(values[0])));
    if (flag == "tensor-model-parallel-size") values[0] = at_most(values[0], world_size_);
    if (flag == "pipeline-model-parallel-size") values[0] = at_most(values[0], world_size_ / tensor_parallel());
    if (flag == "num-query-groups") word("--group-query-attention");
    if (!many) return word("--" + flag + "=" + values[0]);
    word("--" + flag);
    for (const std::string& each : values) {
      require(!each.starts_with("--"), entry, "must have values that are no options.", printable(each), "leave it out");
      word(each);
    }
  }

  static std::optional<int> number_of(const std::string& text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && end == text.data() + text.size() ? std::optional<int>(number) : std::nullopt;
  }
  /// There a size of more ranks than there are is that of all ranks.
  static std::string at_most(const std::string& text, int most) {
    const std::optional<int> number = number_of(text);
    return number && *number > most ? concat(most) : text;
  }
  int tensor_parallel() const {
    const YamlEntry* const entry = find("tensor_model_parallel_size");
    const std::optional<int> number =
        entry == nullptr || entry->is_list ? std::nullopt : number_of(entry->values[0].text);
    return std::clamp(number.value_or(1), 1, std::max(1, world_size_));
  }

  void unknown(const YamlEntry& entry) {
    static const std::vector<std::string> names = [] {
      std::vector<std::string> all = yaml_keys();
      for (const MegatronFlag& flag : megatron_flags()) {
        if (flag.use == FlagUse::Removed || flag.use == FlagUse::Refused) continue;
        all.push_back(flag.names.front());
        std::ranges::replace(all.back(), '-', '_');
      }
      return all;
    }();
    const std::string near = nearest_option(entry.key, names);
    require(false, entry, "must be an option of Megatron-LM, TransformerConfig or ModelParallelConfig.",
            printable(entry.key), near.empty() ? "leave it out" : near);
  }

  const std::string& name_;
  int world_size_;
  std::map<std::string, const YamlEntry*> by_name_;
  YamlWords result_;
  std::string errors_;
};

}  // namespace

YamlWords yaml_words(std::string_view text, const std::string& name, int world_size) {
  const std::vector<YamlEntry> entries = read_yaml(text, name);
  for (const YamlEntry& entry : entries)
    if (!entry.section.empty() && entry.section != "language_model" && entry.section != "model_parallel")
      throw ConfigError(rule_got_fix(concat(name, ":", entry.line, ": sections are language_model and model_parallel."),
                                     printable(entry.section), "write its keys outside of a section"));
  return Words(name, world_size).read(entries);
}

std::string yaml_file_of(const std::vector<std::string>& words) {
  const MegatronArguments arguments(words);
  return arguments.text("yaml-cfg");
}

}  // namespace megatron::config
