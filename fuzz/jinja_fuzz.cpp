// Any bytes are either a chat template that writes a conversation, or refuses it, or a ConfigError; within the bounds
// of its work, and the same text twice. A text that it writes is of a size that these bounds let it have.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "megatron/base/error.h"
#include "megatron/text/chat/jinja.h"

namespace {

const nlohmann::ordered_json& conversation() {
  static const auto context = nlohmann::ordered_json::parse(R"({"bos_token": "<s>", "eos_token": "</s>",
    "add_generation_prompt": true, "tools": [{"type": "function", "function": {"name": "f", "description": "<d>",
    "parameters": {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}, "required": ["a"]}}}],
    "messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Grüße 東京 <b>"},
    {"role": "assistant", "content": "<think>\n1.5\n</think>\n\nyes", "tool_calls": [{"id": "1", "type": "function",
    "function": {"name": "f", "arguments": {"a": "x", "n": -3, "r": 2.5, "no": null, "yes": true}}}]},
    {"role": "tool", "tool_call_id": "1", "content": "{}"}, {"role": "user", "content": "more"}]})");
  return context;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace megatron;
  std::tm now = {};
  now.tm_year = 126;
  now.tm_mday = 1;
  try {
    const text::Jinja jinja(std::string_view(reinterpret_cast<const char*>(data), size));
    const text::JinjaText once = jinja.render(conversation(), now);
    if (once.text.size() > std::size_t{65} << 20 || jinja.render(conversation(), now).text != once.text) std::abort();
    for (const auto& range : once.generated)
      if (range.begin > range.end || range.end > once.text.size()) std::abort();
  } catch (const text::JinjaRaised&) {
  } catch (const ConfigError&) {
  }
  return 0;
}
