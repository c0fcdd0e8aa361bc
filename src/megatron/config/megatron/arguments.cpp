#include "megatron/config/megatron/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>

#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/config/options.h"
#include "megatron/config/run_config.h"

namespace megatron::config {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The text without spaces around it and without the '_' that Python permits between digits; nothing where one is
/// elsewhere.
std::optional<std::string> plain_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.starts_with('+')) return std::nullopt;
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_')
      plain += text[i];
    else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1]))
      return std::nullopt;
  }
  return plain;
}

template <class Number>
std::optional<Number> read_number(std::string_view text) {
  const std::optional<std::string> plain = plain_number(text);
  Number value{};
  if (!plain || plain->empty()) return std::nullopt;
  const char* const last = plain->data() + plain->size();
  const auto [end, error] = std::from_chars(plain->data(), last, value);
  if (error != std::errc() || end != last) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>)
    if (!std::isfinite(value)) return std::nullopt;
  return value;
}

/// Whether argparse takes the word for a flag's value: no flag, or a negative number, or words with a space.
bool is_value(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return true;
  return is_digit(word[1]) || word[1] == '.' || word.find(' ') != std::string::npos;
}

bool is_list(FlagKind kind) {
  return kind == FlagKind::List || kind == FlagKind::ListOrNone || kind == FlagKind::Three;
}

/// This program's names of the layout, which its errors name as a fix: each as the flag that it stands for.
constexpr std::pair<std::string_view, std::string_view> kOwnNames[] = {
    {"tp", "tensor-model-parallel-size"},
    {"parallel.tp", "tensor-model-parallel-size"},
    {"cp", "context-parallel-size"},
    {"parallel.cp", "context-parallel-size"},
    {"pp", "pipeline-model-parallel-size"},
    {"parallel.pp", "pipeline-model-parallel-size"},
    {"vpp", "num-virtual-stages-per-pipeline-rank"},
    {"parallel.vpp", "num-virtual-stages-per-pipeline-rank"},
    {"sp", "sequence-parallel"},
    {"ep", "expert-model-parallel-size"},
    {"parallel.ep", "expert-model-parallel-size"},
    {"etp", "expert-tensor-parallel-size"},
    {"parallel.etp", "expert-tensor-parallel-size"}};

/// This program's other options by their short names, which its errors name too: the whole name; `name` itself where it
/// is none.
std::string own_option(const std::string& name) {
  static const std::map<std::string, std::string, std::less<>> paths = [] {
    RunConfig config;
    std::map<std::string, std::string, std::less<>> all;
    for (const Field& field : fields_of(config).fields)
      for (const std::string& alias : field.aliases) {
        all.emplace(alias, field.path);
        if (std::holds_alternative<bool*>(field.value)) all.emplace("no-" + alias, "no-" + field.path);
      }
    return all;
  }();
  const auto found = paths.find(name);
  return found == paths.end() ? name : found->second;
}

/// `name` as Megatron-LM's flag, or as an option's whole name; itself where it is neither.
std::string flag_or_option(const std::string& name) {
  if (megatron_flag(name) != nullptr) return name;
  const auto* const found = std::ranges::find(kOwnNames, name, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kOwnNames) ? own_option(name) : std::string(found->second);
}

const char* kind_text(FlagKind kind) {
  switch (kind) {
    case FlagKind::Switch:
      return "no value";
    case FlagKind::Int:
      return "an integer";
    case FlagKind::Float:
      return "a number";
    case FlagKind::String:
      return "one value";
    case FlagKind::List:
      return "one value or more";
    case FlagKind::ListOrNone:
      return "values";
    case FlagKind::Three:
      return "three integers";
  }
  return "";
}

/// Whether `name` is no flag and asks for what is so without it: of a flag no-X it is X, of a flag X it is no-X.
bool is_said_by_default(std::string name) {
  std::ranges::replace(name, '_', '-');
  const auto is_switch = [](const std::string& other) {
    const MegatronFlag* const flag = megatron_flag(other);
    return flag != nullptr && flag->kind == FlagKind::Switch && flag->use != FlagUse::Removed;
  };
  for (const std::string prefix : {"no-", "disable-", "un"})
    if (is_switch(prefix + name) || (name.starts_with(prefix) && is_switch(name.substr(prefix.size())))) return true;
  return false;
}

std::string joined(const std::vector<std::string>& words, const char* separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

}  // namespace

std::string MegatronArguments::Given::words() const {
  std::string text = typed;
  for (const std::string& value : values) text += " " + value;
  return text;
}

MegatronArguments::MegatronArguments(const std::vector<std::string>& words) {
  std::size_t next = 0;
  std::vector<std::string> stray;
  while (next < words.size()) {
    const std::string& word = words[next++];
    if (word == "--help" || word == "-h")
      help_ = true;
    else if (word.starts_with("--") && word.size() > 2)
      option(word, words, next);
    else
      stray.push_back(word);
  }
  if (!stray.empty())
    errors_.push_back(rule_got_fix("every word must be an option of Megatron-LM or a value of one.", joined(stray, " "),
                                   "leave it out, or put it behind its option"));
  for (const Given& given : given_) check(given);
}

void MegatronArguments::option(const std::string& word, const std::vector<std::string>& words, std::size_t& next) {
  const std::size_t equals = std::min(word.find('='), word.size());
  const std::string typed = word.substr(0, equals), name = flag_or_option(typed.substr(2));
  if (name.find('.') != std::string::npos) {
    own_.push_back(concat("--", name, word.substr(equals)));
    while (next < words.size() && is_value(words[next])) own_.push_back(words[next++]);
    return;
  }
  const MegatronFlag* const flag = megatron_flag(name);
  Given given{.flag = flag, .typed = typed, .values = {}};
  if (equals < word.size()) given.values.push_back(word.substr(equals + 1));
  const FlagKind kind = flag == nullptr ? FlagKind::ListOrNone : flag->kind;
  const bool takes_next = equals == word.size() && kind != FlagKind::Switch;
  while (takes_next && next < words.size() && is_value(words[next]) && (is_list(kind) || given.values.empty()) &&
         (kind != FlagKind::Three || given.values.size() < 3))
    given.values.push_back(words[next++]);
  if (flag == nullptr) return unknown(typed);
  const auto [place, is_new] = place_.emplace(flag, given_.size());
  if (is_new)
    given_.push_back(std::move(given));
  else
    given_[place->second] = std::move(given);
}

void MegatronArguments::check(const Given& given) {
  const MegatronFlag& flag = *given.flag;
  const auto wrong = [&](const std::string& fix) {
    errors_.push_back(rule_got_fix(concat(given.typed, " takes ", kind_text(flag.kind), "."),
                                   given.values.empty() ? "none" : "'" + joined(given.values, "' '") + "'", fix));
  };
  const std::string_view needed = needed_example(flag.names.front());
  const std::string example = !flag.default_value.empty() ? concat(given.typed, " ", flag.default_value)
                              : !needed.empty()           ? concat(given.typed, " ", needed)
                                                          : concat("leave ", given.typed, " out");
  const std::size_t count = given.values.size();
  if (flag.kind == FlagKind::Switch) {
    if (count > 0) wrong(given.typed);
    return;
  }
  if (flag.kind == FlagKind::Three) {
    const bool three = count == 3 && std::ranges::all_of(given.values, [](const std::string& value) {
                         return read_number<std::int64_t>(value).has_value();
                       });
    if (!three) wrong(concat("leave ", given.typed, " out"));
    return;
  }
  if (is_list(flag.kind) ? flag.kind == FlagKind::List && count == 0 : count != 1) return wrong(example);
  if (flag.kind == FlagKind::Int && !read_number<std::int64_t>(given.values[0])) return wrong(example);
  if (flag.kind == FlagKind::Float && !read_number<double>(given.values[0])) return wrong(example);
  if (flag.choices.empty()) return;
  for (const std::string& value : given.values) {
    if (std::ranges::find(flag.choices, value) != flag.choices.end()) continue;
    const std::string near = nearest_name(value, flag.choices);
    errors_.push_back(rule_got_fix(concat(given.typed, " must be one of ", joined(flag.choices, ", "), "."),
                                   "'" + value + "'",
                                   concat(given.typed, " ", near.empty() ? flag.choices.front() : near)));
  }
}

void MegatronArguments::unknown(const std::string& typed) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const MegatronFlag& flag : megatron_flags())
      if (flag.use != FlagUse::Removed && flag.use != FlagUse::Refused)
        all.insert(all.end(), flag.names.begin(), flag.names.end());
    return all;
  }();
  const std::string name = typed.substr(2);
  const std::string near = is_said_by_default(name) ? "" : nearest_option(name, names);
  errors_.push_back(rule_got_fix("an option must be one of Megatron-LM's parser.", typed,
                                 !near.empty()              ? "--" + near
                                 : is_said_by_default(name) ? concat("leave ", typed, " out: it is the default")
                                                            : concat("leave ", typed, " out")));
}

const MegatronArguments::Given* MegatronArguments::find(std::string_view name) const {
  const MegatronFlag* const flag = megatron_flag(name);
  if (flag == nullptr) throw std::logic_error(concat("the table has no flag ", name));
  const auto place = place_.find(flag);
  return place == place_.end() ? nullptr : &given_[place->second];
}

std::string MegatronArguments::text(std::string_view name) const {
  const Given* const given = find(name);
  if (given == nullptr) return megatron_flag(name)->default_value;
  return given->values.empty() ? "" : given->values.front();
}

std::int64_t MegatronArguments::integer(std::string_view name) const {
  return read_number<std::int64_t>(text(name)).value();
}

double MegatronArguments::number(std::string_view name) const { return read_number<double>(text(name)).value(); }

std::vector<std::string> MegatronArguments::list(std::string_view name) const {
  const Given* const given = find(name);
  return given == nullptr ? std::vector<std::string>() : given->values;
}

std::vector<std::string> shell_words(std::string_view text, const std::string& name) {
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == '\'' ? c == '\'' : quote == '"' && c == '"') {
      quote = 0;
    } else if (quote == '\'') {
      word += c;
    } else if (c == '\\' && i + 1 < text.size()) {
      const char next = text[++i];
      if (next == '\n') continue;  // the line continues
      if (quote == '"' && next != '"' && next != '\\' && next != '$' && next != '`') word += '\\';
      word += next;
      in_word = true;
    } else if (quote == '"') {
      word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      in_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
    } else {
      word += c;
      in_word = true;
    }
  }
  if (quote != 0)
    throw ConfigError(rule_got_fix(name + ": every quote must be closed.", std::string("an open ") + quote,
                                   "close it, or write \\ before it"));
  if (in_word) words.push_back(std::move(word));
  return words;
}

}  // namespace megatron::config
