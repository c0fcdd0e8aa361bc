#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "megatron/text/chat_template.h"

// How models write calls of functions.
namespace megatron::serve {

/// A way to write calls: {"name": "f", ARGUMENTS: {…}} between `opening` and `closing`, or several such in a list.
struct ToolSyntax {
  std::string_view name;
  std::string_view models;     ///< some that write so
  std::string_view opening;    ///< "": an answer that begins with { is a call, and nothing else is
  std::string_view prefix;     ///< where there is no opening: what may precede the {
  std::string_view closing;    ///< "": none
  std::string_view arguments;  ///< the arguments' key
  std::string_view space;      ///< between opening, calls and closing
  bool list;                   ///< between opening and closing is a list of calls, in brackets
  bool short_ids;              ///< the template takes ids of 9 letters and digits alone

  /// Whether one answer may have several calls.
  bool many() const { return !opening.empty(); }
};

/// All that are known.
std::span<const ToolSyntax> tool_syntaxes();

/// The one in which the template writes a call of the assistant, which is how its model was trained to; null where it
/// writes calls in none of them, or leaves them out.
const ToolSyntax* tool_syntax_of(const text::ChatTemplate& chat);

/// Whether an answer may begin with what the model thinks.
enum class Thinking : std::uint8_t {
  None,
  Possible,  ///< kThinkingOpening, its thoughts, kThinkingClosing
  Begun      ///< the prompt has the opening: its thoughts, kThinkingClosing
};
inline constexpr std::string_view kThinkingOpening = "<think>", kThinkingClosing = "</think>";

/// Of the answer behind `prompt`, which the template has written. Possible where the template knows the closing: models
/// that never think do not write the opening.
Thinking thinking_behind(const text::ChatTemplate& chat, std::string_view prompt);

/// For messages: the names of all, with models.
std::string known_tool_syntaxes();

}  // namespace megatron::serve
