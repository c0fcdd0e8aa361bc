#pragma once
#include <cstddef>
#include <ctime>
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

struct JinjaText {
  struct Range {
    std::size_t begin, end;
  };
  std::string text;
  std::vector<Range> generated;  ///< bytes within {% generation %}
};

/// A chat template: renders what transformers' apply_chat_template does, which is Jinja in its immutable sandbox with
/// trim_blocks, lstrip_blocks, loop controls, {% generation %}, raise_exception() and strftime_now(). What is not known
/// here is an error, never another text: docs/chat_templates.md lists it.
class Jinja {
 public:
  /// Throws ConfigError for what is no template.
  explicit Jinja(std::string_view source) : statements_(parse_jinja(source)) {}

  /// The text for the variables that `context`, an object, names. `now`: what strftime_now() writes.
  /// Throws JinjaRaised; and ConfigError, which names line and construct, where the template comes to something that is
  /// not known here, is an error in Jinja, or does more work than a chat of this size needs.
  JinjaText render(const nlohmann::ordered_json& context, const std::tm& now) const;

  /// Whether it has {% generation %}.
  bool marks_answers() const;

 private:
  std::vector<JinjaStatement> statements_;
};

}  // namespace megatron::text
