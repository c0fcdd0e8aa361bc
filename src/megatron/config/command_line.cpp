#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/config/megatron_flags.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"

namespace megatron::config {
namespace {

bool starts_with_dashes(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

/// "-x", but neither "-" (standard input) nor "-1" (a number).
bool is_short_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word[1] != '-' && word[1] != '.' && (word[1] < '0' || word[1] > '9');
}

class WordParser {
 public:
  /// `of_a_run`: the job takes Megatron-LM's flags for training.
  WordParser(const Fields& fields, bool of_a_run) : fields_(fields.fields), of_a_run_(of_a_run) {
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      by_name_.emplace(normalized(fields_[i].path), i);
      for (const std::string& alias : fields_[i].aliases) by_name_.emplace(normalized(alias), i);
    }
  }

  std::vector<std::string> parse(const std::vector<std::string>& words) {
    std::vector<std::string> positional;
    std::size_t i = 0;
    while (i < words.size()) {
      const std::string& word = words[i++];
      if (word == "--") {
        positional.insert(positional.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
        break;
      }
      if (word == "--help" || word == "-h") {
        help_requested_ = true;
        if (i < words.size() && !words[i].starts_with('-')) topic_ = words[i++];
      } else if (starts_with_dashes(word)) {
        option(word, words, i);
      } else if (is_short_option(word)) {
        unknown(word, "");
      } else {
        positional.push_back(word);
      }
    }
    return positional;
  }

  bool help_requested() const { return help_requested_; }
  const std::string& topic() const { return topic_; }
  const std::string& errors() const { return errors_; }

  void commit() const {
    for (const auto& [index, value] : pending_) assign(fields_[index].value, value);
  }

  /// The words that the option of this index was set with, of several the last; "" where it was not.
  std::string words_of(std::size_t index) const {
    const auto found = typed_.find(index);
    return found == typed_.end() ? "" : found->second.word;
  }

 private:
  /// `next` is the word after the option; it moves past the values taken.
  void option(const std::string& word, const std::vector<std::string>& words, std::size_t& next) {
    const std::size_t equals = word.find('=');
    const std::string typed = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::string name = normalized(typed);
    bool negated = false;
    auto found = by_name_.find(name);
    if (found == by_name_.end() && name.starts_with("no-")) {
      found = by_name_.find(name.substr(3));
      negated = found != by_name_.end() && is_bool(fields_[found->second].value);
      if (!negated) found = by_name_.end();
    }
    std::vector<std::string> values;
    if (equals != std::string::npos) values.push_back(word.substr(equals + 1));
    const MegatronSwitch* const preset =
        of_a_run_ && found == by_name_.end() && equals == std::string::npos ? megatron_switch(name) : nullptr;
    if (preset != nullptr) {
      if (preset->excludes != nullptr && switches_.contains(preset->excludes))
        report(rule_got_fix("one of two switches excludes the other.", concat("--", preset->excludes, " and --", name),
                            concat("leave --", preset->excludes, " out")));
      switches_.insert(name);
      for (const auto& [path, value] : preset->settings)
        set(by_name_.at(normalized(path)), "--" + typed, false, {value}, /*by_switch=*/true);
      return;
    }
    const std::optional<MegatronAnswer> megatrons =
        of_a_run_ && found == by_name_.end() ? megatron_answer(normalized(typed)) : std::nullopt;
    if (megatrons) {
      const auto more = [&] { return next < words.size() && !starts_with_dashes(words[next]); };
      const bool one =
          megatrons->kind == FlagKind::Int || megatrons->kind == FlagKind::Float || megatrons->kind == FlagKind::String;
      if (equals == std::string::npos && one && more()) ++next;
      while (equals == std::string::npos && !one && megatrons->kind != FlagKind::Switch && more()) ++next;
      const std::string &fix = megatrons->fix, out = "leave it out";
      return report(rule_got_fix(
          "this flag of Megatron-LM is not supported.", "--" + typed,
          concat("leave --", typed, " out", fix.starts_with(out) ? fix.substr(out.size()) : "; instead: " + fix)));
    }
    if (found == by_name_.end()) {
      while (next < words.size() && !starts_with_dashes(words[next]) && !is_short_option(words[next]))
        ++next;  // its values, whatever they were meant for
      return unknown("--" + typed, name);
    }
    const Field& field = fields_[found->second];
    if (equals == std::string::npos) take_values(field, negated, words, next, values);
    set(found->second, "--" + typed, negated, values);
  }

  static void take_values(const Field& field, bool negated, const std::vector<std::string>& words, std::size_t& next,
                          std::vector<std::string>& values) {
    const auto more = [&] { return next < words.size() && !words[next].starts_with("--"); };
    if (is_bool(field.value)) {
      if (!negated && more() && (words[next] == "true" || words[next] == "false")) values.push_back(words[next++]);
      if (values.empty()) values.emplace_back(negated ? "false" : "true");
    } else if (is_list(field.value)) {
      while (more()) values.push_back(words[next++]);
    } else if (more()) {
      values.push_back(words[next++]);
    }
  }

  void set(std::size_t index, const std::string& typed, bool negated, const std::vector<std::string>& values,
           bool by_switch = false) {
    const Field& field = fields_[index];
    std::string got;
    for (const std::string& value : values) got += (got.empty() ? "'" : " '") + value + "'";
    if (values.empty()) got = "no value";
    const bool misused = negated && values != std::vector<std::string>{"false"};  // --no-flag=value
    const std::optional<Value> value = values.empty() || misused ? std::nullopt : parse_value(field.value, values);
    if (!value) {
      const std::string example = plain_value(field.value);
      report(rule_got_fix(concat(typed, " takes ", misused ? "no value" : type_name(field.value), "."), got,
                          misused                          ? concat(typed, " (without a value)")
                          : !field.example.empty()         ? concat(typed, " ", field.example)
                          : !example.empty()               ? concat(typed, " ", example, " (the default)")
                          : !field.meaning.choices.empty() ? concat(typed, " ", field.meaning.choices.front())
                          : values.empty() && !std::holds_alternative<std::vector<std::int64_t>*>(field.value) &&
                                  !std::holds_alternative<std::vector<double>*>(field.value)
                              ? concat(typed, " TEXT")
                              : concat("leave ", typed, " out")));
      return;
    }
    if (split_path(field.path).section.empty()) check_choices(field, typed, values);
    const auto [entry, is_new] = pending_.emplace(index, *value);
    const Typed before = std::exchange(typed_[index], {typed, by_switch});
    if (is_new) return;
    // Of the same option given twice the last holds, as scripts add to their words; a switch means more than one
    // option.
    if (before.by_switch != by_switch && entry->second != *value)
      report(rule_got_fix(concat("one of two options excludes the other: both say ", field.path, "."),
                          concat(before.word, " and ", typed), concat("leave ", before.word, " out")));
    if (is_list(field.value))
      append(entry->second, *value);
    else
      entry->second = *value;
  }

  void check_choices(const Field& field, const std::string& typed, const std::vector<std::string>& values) {
    const std::vector<std::string>& choices = field.meaning.choices;
    if (choices.empty()) return;
    for (const std::string& value : values)
      if (std::ranges::find(choices, value) == choices.end())
        report(not_a_choice(typed, value, choices, typed, concat(typed, " ", choices.front())));
  }

  void unknown(const std::string& typed, const std::string& name) {
    std::vector<std::string> known;
    for (const auto& [option_name, index] : by_name_) {
      known.push_back(option_name);
      if (is_bool(fields_[index].value)) known.push_back("no-" + option_name);
      known.push_back(split_path(option_name).name);
    }
    std::string near = nearest_option(name, known);
    if (near.empty()) near = nearest_option(split_path(name).name, known);  // of another section
    // A match by the last part of a path is shown with its path.
    std::string fix = near.empty() ? "leave " + typed + " out; --help lists all options" : "--" + near;
    for (const auto& [option_name, index] : by_name_)
      if (!near.empty() && !by_name_.contains(near) && split_path(option_name).name == near) fix = "--" + option_name;
    report(rule_got_fix("an option must be one that this job has.", typed, fix));
  }

  void report(const std::string& message) { errors_ += (errors_.empty() ? "" : "\n") + message; }

  struct Typed {
    std::string word;
    bool by_switch = false;  ///< of Megatron-LM's
  };

  const std::vector<Field>& fields_;
  const bool of_a_run_;
  std::set<std::string> switches_;              ///< of Megatron-LM's, those given
  std::map<std::string, std::size_t> by_name_;  ///< normalized path or alias -> index into fields_
  std::map<std::size_t, Value> pending_;
  std::map<std::size_t, Typed> typed_;
  std::string errors_;
  bool help_requested_ = false;
  std::string topic_;  ///< the word after --help
};

void throw_if_any(const std::string& errors) {
  if (!errors.empty()) throw ConfigError(errors);
}

/// The one positional word of a command that takes a recipe. Throws ConfigError with the usage unless there is one.
std::string only_recipe(const std::vector<std::string>& positional, const std::string& usage) {
  if (positional.size() == 1) return positional[0];
  std::string got = positional.empty() ? "none" : "";
  for (const std::string& word : positional) got += (got.empty() ? "" : " ") + word;
  throw ConfigError(rule_got_fix("this job takes one recipe, a TOML file.", got, usage.substr(0, usage.find('\n'))));
}

}  // namespace

std::vector<std::string> parse_words(const Fields& fields, const std::vector<std::string>& words,
                                     const std::string& usage) {
  WordParser parser(fields, false);
  std::vector<std::string> positional = parser.parse(words);
  if (parser.help_requested()) throw HelpRequested(help_text(fields, usage, parser.topic()));
  throw_if_any(parser.errors());
  parser.commit();
  return positional;
}

RecipeCommand parse_recipe_words(const Fields& fields, const Fields& recipe, const std::vector<std::string>& words,
                                 const std::string& usage, const std::function<void()>& check) {
  std::vector<std::string> before;
  for (const Field& field : fields.fields) before.push_back(plain_value(field.value));
  WordParser parser(fields, true);
  const std::vector<std::string> positional = parser.parse(words);
  if (parser.help_requested()) throw HelpRequested(help_text(fields, usage, parser.topic()));
  RecipeCommand command;
  bool is_read = false;
  attempt_all({[&] { throw_if_any(parser.errors()); },
               [&] {
                 command.recipe = only_recipe(positional, usage);
                 const std::string errors = set_from_toml_file(recipe, command.recipe);
                 is_read = true;
                 throw_if_any(errors);
               },
               [&] {
                 if (!is_read) return;
                 parser.commit();
                 for (std::size_t i = 0; i < before.size(); ++i) {
                   const Field& field = fields.fields[i];
                   const bool changed = plain_value(field.value) != before[i];
                   const std::string typed = parser.words_of(i);
                   if (changed || (!typed.empty() && before[i] != "false"))
                     command.given.emplace(field.path, typed.empty() ? field.path : typed);
                 }
                 if (check) check();
               }});
  return command;
}

}  // namespace megatron::config
