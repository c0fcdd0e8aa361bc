#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/megatron/flag_table.h"

namespace megatron::config {

/// Megatron-LM's argument list as its parser reads it (Python's argparse without abbreviations): `--flag value`,
/// `--flag=value`, lists up to the next flag; of a flag given twice the last holds, a list included.
class MegatronArguments {
 public:
  struct Given {
    const MegatronFlag* flag;
    std::string typed;  ///< "--lr"
    std::vector<std::string> values;

    std::string words() const;  ///< "--lr 1e-4"
  };

  /// Reads every word; what is wrong is in errors(). Options with a dot in their name (`--train.out DIR`) are this
  /// program's own and wait in own_words().
  explicit MegatronArguments(const std::vector<std::string>& words);

  /// One message per wrong word: rule, got, fix.
  const std::vector<std::string>& errors() const { return errors_; }
  const std::vector<std::string>& own_words() const { return own_; }
  bool asks_for_help() const { return help_; }

  /// What is given, each flag once, in the order of their first words.
  const std::vector<Given>& given() const { return given_; }

  /// Of a flag by its first name. Where it is not given, text() is the default ("" for none). A number must be one
  /// (errors() is empty) and have a value or a default.
  bool has(std::string_view name) const { return find(name) != nullptr; }
  std::string text(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;

 private:
  const Given* find(std::string_view name) const;
  void option(const std::string& word, const std::vector<std::string>& words, std::size_t& next);
  void check(const Given& given);
  void unknown(const std::string& typed);

  std::vector<Given> given_;
  std::map<const MegatronFlag*, std::size_t> place_;
  std::vector<std::string> own_, errors_;
  bool help_ = false;
};

/// The words of a line as a POSIX shell splits it: single and double quotes, backslashes. Nothing is expanded. Throws
/// ConfigError, which names the text `name`, where a quote is not closed.
std::vector<std::string> shell_words(std::string_view text, const std::string& name);

}  // namespace megatron::config
