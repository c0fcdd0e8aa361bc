#pragma once
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/text/chat/jinja_syntax.h"

namespace megatron::text {

/// What a template says by raise_exception() of the conversation it was given.
struct JinjaRaised : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A chat template, which can be tried: the part of Jinja that published ones go through for conversations without
/// tools (statements if, for, set; operators; namespace(); the filters, tests and methods that jinja.cpp names).
/// It is for finding out what a template does. Conversations are rendered by ChatTemplate.
class Jinja {
 public:
  /// Throws ConfigError for what is no template.
  explicit Jinja(std::string_view source) : statements_(parse_jinja(source)) {}

  /// The text for the variables that `context`, an object, names. Throws JinjaRaised; and ConfigError where the
  /// template comes to something that is not known here, is an error in Jinja, or does more than a chat needs.
  std::string render(const nlohmann::json& context) const;

 private:
  std::vector<JinjaStatement> statements_;
};

/// What Python's str.strip() takes off the ends of a text, or off one of them: Unicode's white space and ASCII's
/// separators.
std::string python_strip(std::string_view text, bool left = true, bool right = true);

}  // namespace megatron::text
