#include "megatron/serve/tools/tool_syntax.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/text/json.h"
#include "megatron/serve/tools/tool_call_parser.h"

namespace megatron::serve {
namespace {

constexpr std::array kToolSyntaxes = {
    ToolSyntax{.name = "Hermes",
               .models = "Hermes 2 and 3, Qwen 2.5, Qwen 3, QwQ, Granite 4",
               .opening = "<tool_call>",
               .prefix = "",
               .closing = "</tool_call>",
               .arguments = "arguments",
               .space = "\n",
               .list = false,
               .short_ids = false},
    ToolSyntax{.name = "Llama",
               .models = "Llama 3.1 to 3.3",
               .opening = "",
               .prefix = "<|python_tag|>",
               .closing = "",
               .arguments = "parameters",
               .space = "",
               .list = false,
               .short_ids = false},
    ToolSyntax{.name = "Mistral",
               .models = "Mistral 7B v0.3, Mistral Nemo",
               .opening = "[TOOL_CALLS]",
               .prefix = "",
               .closing = "",
               .arguments = "arguments",
               .space = "",
               .list = true,
               .short_ids = true},
    ToolSyntax{.name = "Nemotron",
               .models = "Nemotron Nano v2",
               .opening = "<TOOLCALL>",
               .prefix = "",
               .closing = "</TOOLCALL>",
               .arguments = "arguments",
               .space = "",
               .list = true,
               .short_ids = false},
    ToolSyntax{.name = "Apriel",
               .models = "Apriel 1.5",
               .opening = "<tool_calls>",
               .prefix = "",
               .closing = "</tool_calls>",
               .arguments = "arguments",
               .space = "",
               .list = true,
               .short_ids = false},
};

/// Names and an id that no template has by itself, the id as short as any template wants it.
constexpr const char *kProbedTool = "probed_tool", *kProbedId = "probe1234";

/// Where two texts begin to differ.
std::size_t end_of_common(const std::string& a, const std::string& b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

/// What the template writes where the assistant calls the probed tool with {"key": 1}: behind the beginning of an
/// answer that it writes for the model to continue, and with the beginning that it writes for an answer which is there,
/// as these differ where the model is to think first. Nothing where it refuses to.
std::vector<std::string> probed_answers(const text::ChatTemplate& chat) {
  const nlohmann::ordered_json tools =
      nlohmann::ordered_json::array({{{"type", "function"},
                                      {"function",
                                       {{"name", kProbedTool},
                                        {"description", "A tool."},
                                        {"parameters",
                                         {{"type", "object"},
                                          {"properties", {{"key", {{"type", "integer"}, {"description", "A key."}}}}},
                                          {"required", nlohmann::ordered_json::array({"key"})}}}}}}});
  std::vector<text::ChatMessage> messages = {{.role = "user", .content = "Call it."}};
  try {
    const std::string open = chat.prompt(messages, &tools), asked = chat.closed(messages, &tools);
    messages.push_back({.role = "assistant",
                        .content = "",
                        .tool_calls = {{.id = kProbedId, .name = kProbedTool, .arguments = R"({"key": 1})"}}});
    const std::string whole = chat.closed(messages, &tools);
    return {whole.substr(end_of_common(open, whole)), whole.substr(end_of_common(asked, whole))};
  } catch (const ConfigError&) {
    return {};
  }
}

/// Whether the syntax finds the call of the probed tool in an answer.
bool is_written_in(const ToolSyntax& syntax, const std::string& answer) {
  ToolCallParser parser({.syntax = &syntax, .names = {kProbedTool}, .new_id = [](std::size_t) { return kProbedId; }});
  ToolPiece piece = parser.push(answer);
  piece.add(parser.finish());
  // The other key for arguments is taken from a model, and tells that a template is not of this syntax.
  return piece.calls.size() == 1 && answer.find(concat('"', syntax.arguments, '"')) != std::string::npos &&
         parse_json(piece.calls[0].arguments) == nlohmann::json{{"key", 1}};
}

}  // namespace

std::span<const ToolSyntax> tool_syntaxes() { return kToolSyntaxes; }

const ToolSyntax* tool_syntax_of(const text::ChatTemplate& chat) {
  const std::vector<std::string> answers = probed_answers(chat);
  for (const ToolSyntax& syntax : tool_syntaxes())
    for (const std::string& answer : answers)
      if (is_written_in(syntax, answer)) return &syntax;
  return nullptr;
}

Thinking thinking_behind(const text::ChatTemplate& chat, std::string_view prompt) {
  if (!chat.mentions(kThinkingClosing)) return Thinking::None;
  prompt = prompt.substr(0, prompt.find_last_not_of(" \n\t\r") + 1);
  if (prompt.ends_with(kThinkingClosing)) return Thinking::None;  // it has thought, or is not to
  return prompt.ends_with(kThinkingOpening) ? Thinking::Begun : Thinking::Possible;
}

std::string known_tool_syntaxes() {
  std::string text;
  for (const ToolSyntax& syntax : tool_syntaxes())
    text += concat(text.empty() ? "" : "; ", syntax.name, " (", syntax.models, ")");
  return text;
}

}  // namespace megatron::serve
