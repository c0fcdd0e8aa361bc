#include "megatron/text/chat_template.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/files/gguf.h"
#include "megatron/base/text/ordered_json.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/chat/python/methods.h"
#include "megatron/text/files/gguf_tokenizer.h"
#include "megatron/text/files/token_spellings.h"

namespace megatron::text {
namespace {

constexpr std::uint64_t kMaxFile = std::uint64_t{16} << 20;
constexpr std::size_t kMaxTemplate = 256 << 10;  // published ones have up to 20 kilobytes

/// The tokens of tokenizer_config.json: a text each, or an object with `content`.
ChatTemplate::Tokens tokens_of(const nlohmann::json& config) {
  ChatTemplate::Tokens tokens;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto value = config.find(name);
    if (value == config.end()) continue;
    const nlohmann::json text = value->is_object() ? value->value("content", nlohmann::json()) : *value;
    if (text.is_string()) tokens[name] = text.get<std::string>();
  }
  return tokens;
}

/// The template of tokenizer_config.json, or "".
std::string template_of(const nlohmann::json& config) {
  const nlohmann::json found = config.value("chat_template", nlohmann::json());
  if (found.is_string()) return found.get<std::string>();
  if (found.is_array())
    for (const auto& one : found)
      if (one.is_object() && one.value("name", nlohmann::json()) == "default" && one.contains("template") &&
          one["template"].is_string())
        return one["template"].get<std::string>();
  return "";
}

/// Where the answer of `content` ends that a template writes as `text`, and white space behind it. Without a mark at
/// its end the white space is the mark.
std::size_t answer_size(std::string_view text, std::string_view content) {
  const std::string_view shown = python_strip(text, false, true), said = python_strip(content, false, true);
  const bool is_marked = !shown.empty() && (said.empty() || !shown.ends_with(said));
  return is_marked ? shown.size() : text.size();
}

/// As transformers' users give it: an empty field is left out.
nlohmann::ordered_json as_templates_see(const ChatMessage& message) {
  nlohmann::ordered_json object = {{"role", message.role}, {"content", message.content}};
  for (const ChatToolCall& call : message.tool_calls)
    object["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", parse_ordered_json(call.arguments)}}}});
  if (!message.tool_call_id.empty()) object["tool_call_id"] = message.tool_call_id;
  if (!message.name.empty()) object["name"] = message.name;
  return object;
}

Jinja parsed(const std::string& jinja, const std::string& name) {
  if (jinja.size() > kMaxTemplate)
    throw ConfigError(
        rule_got_fix(concat(name, ": a chat template has at most ", kMaxTemplate, " bytes."), concat(jinja.size())));
  try {
    return Jinja(jinja);
  } catch (const ConfigError& error) {
    throw ConfigError(concat(name, ": ", error.what()));
  }
}

}  // namespace

ChatTemplate ChatTemplate::load(const std::filesystem::path& path) {
  if (is_gguf(path)) {
    const MappedFile mapped(path);
    const Gguf file(mapped.text(), path.string());
    const std::string jinja = gguf_chat_template(file);
    if (jinja.empty())
      throw ConfigError(rule_got_fix("a chat needs a template: tokenizer.chat_template in a GGUF file.", path.string(),
                                     "name the folder of a chat model as the tokenizer"));
    return {jinja, gguf_named_tokens(file), path.string()};
  }
  const auto folder = std::filesystem::is_regular_file(path) ? path.parent_path() : path;
  const auto config_file = folder / "tokenizer_config.json", jinja_file = folder / "chat_template.jinja";
  nlohmann::json config = nlohmann::json::object();
  if (std::filesystem::exists(config_file)) config = parse_json(read_file(config_file, kMaxFile), config_file.string());
  std::string jinja;
  if (std::filesystem::exists(jinja_file))
    jinja = read_file(jinja_file, kMaxFile);
  else if (config.is_object())
    jinja = template_of(config);
  if (!config.is_object() || jinja.empty())
    throw ConfigError(
        rule_got_fix("a chat needs a template: chat_template.jinja, or chat_template in tokenizer_config.json.",
                     folder.empty() ? "no folder with a tokenizer" : concat("none in ", folder.string()),
                     "name the folder of a chat model as the tokenizer"));
  return {jinja, tokens_of(config), folder.string()};
}

ChatTemplate::ChatTemplate(const std::string& jinja, Tokens tokens, std::string name)
    : jinja_(parsed(jinja, name)), source_(jinja), tokens_(std::move(tokens)), name_(std::move(name)) {
  const std::time_t now = std::time(nullptr);
  ::localtime_r(&now, &now_);
}

JinjaText ChatTemplate::rendered(std::span<const ChatMessage> messages, bool open,
                                 const nlohmann::ordered_json* tools) const {
  nlohmann::ordered_json context = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", open}};
  if (tools != nullptr) context["tools"] = *tools;
  auto& list = context["messages"] = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    const bool answers_call = message.role == "tool" && !message.tool_call_id.empty();
    if (message.role != "system" && message.role != "user" && message.role != "assistant" && !answers_call)
      throw ConfigError(
          rule_got_fix("a role is system, user or assistant.", in_quotes(message.role), "\"role\": \"user\""));
    list.push_back(as_templates_see(message));
  }
  for (const auto& [key, token] : tokens_) context[key] = token;
  try {
    return jinja_.render(context, now_);
  } catch (const JinjaRaised& raised) {
    throw ConversationRefused(rule_got_fix(concat(name_, ": the model's chat template refuses this conversation."),
                                           printable(raised.what()), "leave out or join the messages that it refuses"));
  } catch (const ConfigError& error) {
    throw ConfigError(concat(name_, ": ", error.what()));
  }
}

std::string ChatTemplate::prompt(std::span<const ChatMessage> messages, const nlohmann::ordered_json* tools) const {
  if (messages.empty())
    throw ConfigError(rule_got_fix("a conversation must have messages.", "none", "a message at least"));
  return rendered(messages, /*open=*/true, tools).text;
}

std::string ChatTemplate::closed(std::span<const ChatMessage> messages, const nlohmann::ordered_json* tools) const {
  return rendered(messages, /*open=*/false, tools).text;
}

RenderedChat ChatTemplate::render(std::span<const ChatMessage> messages) const {
  if (messages.empty())
    throw ConfigError(rule_got_fix("a conversation must have messages.", "none", "a message at least"));
  JinjaText whole = rendered(messages, /*open=*/false);
  RenderedChat chat{std::move(whole.text), std::move(whole.generated)};
  if (jinja_.marks_answers()) return chat;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    const std::string before = rendered(messages.first(i), /*open=*/true).text;
    const std::string after = i + 1 == messages.size() ? chat.text : rendered(messages.first(i + 1), false).text;
    if (!after.starts_with(before) || !chat.text.starts_with(after))
      throw ConfigError(rule_got_fix(
          concat(name_, ": an answer must be what the chat template adds to the conversation before it."),
          concat("message ", i + 1, ", which ",
                 after.starts_with(before) ? "it writes otherwise when more messages follow"
                                           : "does not begin where it lets an answer begin"),
          "let each conversation end with its first answer, or mark answers in the template by {% generation %}"));
    const std::string_view answer = std::string_view(after).substr(before.size());
    chat.answers.push_back({before.size(), before.size() + answer_size(answer, messages[i].content)});
  }
  return chat;
}

std::string ChatTemplate::description() const {
  std::string text = source_;
  for (const auto& [key, token] : tokens_) text += concat("\n", key, ": ", token);
  if (source_.find("strftime_now") != std::string::npos)
    text += concat("\nday: ", now_.tm_year + 1900, "-", now_.tm_mon + 1, "-", now_.tm_mday);
  return text;
}

}  // namespace megatron::text
