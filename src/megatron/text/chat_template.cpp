#include "megatron/text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/file.h"

namespace megatron::text {
namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;
constexpr std::size_t kLongestTemplate = 64 << 10;  // published ones have a few kilobytes

/// Jinja's escapes of a line's end become one, so that templates from .jinja and from JSON look the same.
std::string with_line_ends(const std::string& jinja) {
  std::string text;
  for (std::size_t i = 0; i < jinja.size(); ++i) {
    const bool escaped = jinja.compare(i, 2, "\\n") == 0;
    text += escaped ? '\n' : jinja[i];
    i += escaped ? 1 : 0;
  }
  return text;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// What Python's strip(), and so Jinja's trim, takes off both ends: Unicode's white space and ASCII's separators.
std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlanks[] = {
      "\t",           "\n",           "\v",           "\f",           "\r",
      "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
      "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
      "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
      "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
      "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
  const auto strip = [&](auto ends, auto remove) {
    for (bool again = true; again;) {
      const auto* const blank = std::ranges::find_if(kBlanks, ends);
      again = blank != std::end(kBlanks);
      if (again) remove(blank->size());
    }
  };
  strip([&](std::string_view blank) { return text.starts_with(blank); }, [&](std::size_t n) { text.remove_prefix(n); });
  strip([&](std::string_view blank) { return text.ends_with(blank); }, [&](std::size_t n) { text.remove_suffix(n); });
  return std::string(text);
}

/// What stands between `begin` and `end` where that is not empty and has none of `others`; the first such, else empty.
/// Not a regular expression: those of the standard library recurse over every character of a text that matches.
std::string between(std::string_view text, std::string_view begin, std::string_view end, const char* others) {
  for (std::size_t at = text.find(begin); at != std::string_view::npos; at = text.find(begin, at + 1)) {
    const std::string_view rest = text.substr(at + begin.size());
    const std::size_t stop = rest.find_first_of(others);
    if (stop != std::string_view::npos && stop > 0 && rest.substr(stop).starts_with(end))
      return std::string(rest.substr(0, stop));
  }
  return "";
}

/// A token of tokenizer_config.json: a text, or an object with `content`.
std::string token_of(const nlohmann::json& config, const char* key) {
  const auto value = config.find(key);
  if (value == config.end()) return "";
  if (value->is_string()) return value->get<std::string>();
  return value->is_object() && value->contains("content") && (*value)["content"].is_string()
             ? (*value)["content"].get<std::string>()
             : "";
}

[[noreturn]] void refuse(const std::string& name, const std::string& got) {
  throw ConfigError(rule_got_fix(
      concat(name, ": a chat template must be ChatML's (SmolLM2, Qwen), Llama 2's, Llama 3's or Mistral's."), got,
      "render the conversations yourself and train on them as text"));
}

void append_answer(RenderedChat& out, const std::string& answer) {
  out.answers.push_back({out.text.size(), out.text.size() + answer.size()});
  out.text += answer;
}

/// Throws unless user and assistant take turns, the user first.
void check_turns(std::span<const ChatMessage> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role != (i % 2 == 0 ? "user" : "assistant"))
      throw ConfigError(rule_got_fix("user and assistant must take turns in this chat template, the user first.",
                                     concat(messages[i].role, " as turn ", i + 1)));
}

}  // namespace

ChatTemplate ChatTemplate::load(const std::filesystem::path& folder) {
  const auto config_file = folder / "tokenizer_config.json", jinja_file = folder / "chat_template.jinja";
  nlohmann::json config = nlohmann::json::object();
  if (std::filesystem::exists(config_file))
    config = nlohmann::json::parse(read_file(config_file, kLargestFile), nullptr, /*allow_exceptions=*/false);
  std::string jinja;
  if (std::filesystem::exists(jinja_file))
    jinja = read_file(jinja_file, kLargestFile);
  else if (config.is_object() && config.contains("chat_template") && config["chat_template"].is_string())
    jinja = config["chat_template"].get<std::string>();
  if (!config.is_object() || jinja.empty())
    throw ConfigError(
        rule_got_fix("a chat needs a template: chat_template.jinja, or chat_template in tokenizer_config.json.",
                     folder.string(), "name the folder of a chat model as the tokenizer"));
  return {jinja, token_of(config, "bos_token"), token_of(config, "eos_token"), folder.string()};
}

ChatTemplate::ChatTemplate(const std::string& jinja, std::string bos, std::string eos, const std::string& name)
    : bos_(std::move(bos)), eos_(std::move(eos)) {
  if (jinja.size() > kLongestTemplate) refuse(name, concat("a template of ", jinja.size(), " bytes"));
  const std::string text = with_line_ends(jinja);
  if (has(text, "<|im_start|>")) {
    // Templates that leave the last mark out, change contents or hide thoughts are not this family's.
    for (const char* other : {"loop.last", "trim", "strip", "think", "bos_token"})
      if (has(text, other)) refuse(name, concat("ChatML with ", other));
    if (!has(text, "<|im_end|>")) refuse(name, "ChatML without <|im_end|>");
    system_ = between(text, "<|im_start|>system\n", "<|im_end|>", "'\"{}<");
  } else if (has(text, "<|start_header_id|>")) {
    family_ = Family::Llama3;
    if (!has(text, "<|eot_id|>") || !has(text, "trim")) refuse(name, "a relative of Llama 3's");
    if (has(text, "strftime_now")) refuse(name, "one that writes the date of the day it is used (Llama 3.2)");
    if (has(text, "Cutting Knowledge Date")) date_ = between(text, "date_string = \"", "\"", "\"");
  } else if (has(text, "<<SYS>>")) {
    family_ = Family::Llama2;
    if (!has(text, "content.strip()")) refuse(name, "a relative of Llama 2's");
  } else if (has(text, "[INST]")) {
    family_ = Family::Mistral;
    std::smatch user, answer;
    const std::regex of_user(R"re(['"]( ?\[INST\] ?)['"] \+ message\[['"]content['"]\] \+ ['"]( ?\[/INST\] ?)['"])re");
    const std::regex of_answer(
        R"re((?:['"]( )['"] \+ )?message\[['"]content['"]\]( ?\| ?trim)? ?\+ ?eos_token(?: ?\+ ['"]( )['"])?)re");
    if (!std::regex_search(text, user, of_user) || !std::regex_search(text, answer, of_answer))
      refuse(name, "a relative of Mistral's");
    before_user_ = user[1];
    after_user_ = user[2];
    before_answer_ = answer[1];
    trims_answer_ = answer[2].matched;
    after_answer_ = answer[3];
  } else {
    refuse(name, "\"" + text.substr(0, 60) + "…\"");
  }
}

void ChatTemplate::render_marked(std::span<const ChatMessage> messages, bool open, RenderedChat& out) const {
  const bool chat_ml = family_ == Family::ChatMl;
  const std::string begin = chat_ml ? "<|im_start|>" : "<|start_header_id|>";
  const std::string middle = chat_ml ? "\n" : "<|end_header_id|>\n\n", end = chat_ml ? "<|im_end|>" : "<|eot_id|>";
  const std::string next = chat_ml ? "\n" : "";
  const bool has_system = messages[0].role == "system";
  if (!chat_ml) out.text += bos_;
  if (chat_ml && !has_system && !system_.empty()) out.text += begin + "system" + middle + system_ + end + next;
  if (!date_.empty()) {
    out.text += concat(begin, "system", middle, "Cutting Knowledge Date: December 2023\nToday Date: ", date_, "\n\n",
                       has_system ? trimmed(messages[0].content) : "", end);
    if (has_system) messages = messages.subspan(1);
  }
  for (const ChatMessage& message : messages) {
    const std::string content = chat_ml ? message.content : trimmed(message.content);
    out.text += begin + message.role + middle;
    if (message.role == "assistant")
      append_answer(out, content + end);
    else
      out.text += content + end;
    out.text += next;
  }
  if (open) out.text += begin + "assistant" + middle;
}

void ChatTemplate::render_instructions(std::span<const ChatMessage> messages, RenderedChat& out) const {
  const bool llama = family_ == Family::Llama2, has_system = messages[0].role == "system";
  if (has_system && !llama)
    throw ConfigError(rule_got_fix("this chat template has no system message.", "one", "write it into the user's"));
  const std::string system = has_system ? "<<SYS>>\n" + messages[0].content + "\n<</SYS>>\n\n" : "";
  if (has_system) messages = messages.subspan(1);
  check_turns(messages);
  if (!llama) out.text += bos_;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& content = messages[i].content;
    if (messages[i].role == "user") {
      out.text += llama ? bos_ + "[INST] " + trimmed((i == 0 ? system : "") + content) + " [/INST]"
                        : before_user_ + content + after_user_;
      continue;
    }
    // The blank before it is the answer's: after "[/INST]" the model writes " Hello", which is one token.
    const std::string words = llama || trims_answer_ ? trimmed(content) : content;
    append_answer(out, (llama ? " " : before_answer_) + words + (llama ? " " : "") + eos_);
    out.text += after_answer_;
  }
}

RenderedChat ChatTemplate::render(std::span<const ChatMessage> messages, bool open) const {
  if (messages.empty()) throw ConfigError(rule_got_fix("a conversation must have messages.", "none"));
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      throw ConfigError(rule_got_fix("a role is system, user or assistant.", "\"" + role + "\""));
  }
  RenderedChat out;
  if (family_ == Family::ChatMl || family_ == Family::Llama3)
    render_marked(messages, open, out);
  else
    render_instructions(messages, out);
  return out;
}

std::string ChatTemplate::description() const {
  return concat("family ", static_cast<int>(family_), "; bos ", bos_, "; eos ", eos_, "; system ", system_, "; date ",
                date_, "; user ", before_user_, "|", after_user_, "; answer ", before_answer_, "|", after_answer_, "|",
                trims_answer_);
}

}  // namespace megatron::text
