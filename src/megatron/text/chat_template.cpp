#include "megatron/text/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/file.h"
#include "megatron/text/chat/jinja.h"

namespace megatron::text {
namespace {

constexpr std::uint64_t kLargestFile = std::uint64_t{16} << 20;
constexpr std::size_t kLongestTemplate = 64 << 10;  // published ones have a few kilobytes

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

std::string trimmed(std::string_view text) { return python_strip(text); }

/// What stands between `begin` at the front of `text` and `end` at its back; nothing where these are not there.
std::optional<std::string> between(std::string_view text, std::string_view begin, std::string_view end) {
  if (text.size() < begin.size() + end.size() || !text.starts_with(begin) || !text.ends_with(end)) return std::nullopt;
  return std::string(text.substr(begin.size(), text.size() - begin.size() - end.size()));
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

/// The beginning of `text`, for messages.
std::string in_json(const std::string& text) {
  return nlohmann::json(text.substr(0, 200)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
                                     concat(messages[i].role, " as turn ", i + 1),
                                     "leave out or join what breaks the turns"));
}

constexpr const char* kDateBegin =
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ";

}  // namespace

/// The template itself, given conversations as transformers gives them.
class ChatTemplate::Tried {
 public:
  Tried(const std::string& jinja, const std::string& bos, const std::string& eos) : jinja_(jinja) {
    context_ = {{"tools", nullptr}, {"documents", nullptr}};
    if (!bos.empty()) context_["bos_token"] = bos;
    if (!eos.empty()) context_["eos_token"] = eos;
  }

  std::string text(std::span<const ChatMessage> messages, bool open = false) const {
    nlohmann::json context = context_;
    context["messages"] = nlohmann::json::array();
    for (const ChatMessage& message : messages)
      context["messages"].push_back({{"role", message.role}, {"content", message.content}});
    context["add_generation_prompt"] = open;
    return jinja_.render(context);
  }
  std::string text(std::initializer_list<ChatMessage> messages) const {
    return text(std::span(messages.begin(), messages.end()));
  }

 private:
  Jinja jinja_;
  nlohmann::json context_;
};

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
  if (has(jinja, "strftime_now")) refuse(name, "one that writes the date of the day it is used (Llama 3.2)");
  if (has(jinja, "<|im_start|>"))
    family_ = Family::ChatMl;
  else if (has(jinja, "<|start_header_id|>"))
    family_ = Family::Llama3;
  else if (has(jinja, "<<SYS>>"))
    family_ = Family::Llama2;
  else if (has(jinja, "[INST]"))
    family_ = Family::Mistral;
  else
    refuse(name, "\"" + jinja.substr(0, 60) + "…\"");
  try {
    const Tried tried(jinja, bos_, eos_);
    read_parts(tried);
    compare(tried);
  } catch (const JinjaRaised& error) {
    refuse(name, concat("one that says of an ordinary conversation: ", error.what()));
  } catch (const ConfigError& error) {
    refuse(name, error.what());
  }
}

/// Reads off what the template makes of short conversations what differs within its family.
void ChatTemplate::read_parts(const Tried& tried) {
  const auto other = [](const std::string& text) {
    return ConfigError(concat("a relative, which begins ", in_json(text)));
  };
  const std::string user = tried.text({{"user", "U"}});
  if (family_ == Family::ChatMl) {
    if (user.starts_with("<|im_start|>user")) return;
    const auto system = between(user, "<|im_start|>system\n", "<|im_end|>\n<|im_start|>user\nU<|im_end|>\n");
    if (!system) throw other(user);
    system_ = *system;
  } else if (family_ == Family::Llama3) {
    if (user.starts_with(bos_ + "<|start_header_id|>user")) return;
    const auto date =
        between(user, bos_ + kDateBegin, "\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>");
    if (!date) throw other(user);
    date_ = *date;
  } else if (family_ == Family::Mistral) {
    read_instructions(tried);
  }
}

void ChatTemplate::read_instructions(const Tried& tried) {
  const std::string question = "QUESTION", answer = "\nANSWER\n";
  const std::string asked = tried.text({{"user", question}});
  const std::string answered = tried.text({{"user", question}, {"assistant", answer}});
  const std::size_t at = asked.find(question);
  const ConfigError other(concat("a relative, which begins ", in_json(answered)));
  if (!asked.starts_with(bos_) || at == std::string::npos || at < bos_.size() || !answered.starts_with(asked))
    throw other;
  before_user_ = asked.substr(bos_.size(), at - bos_.size());
  after_user_ = asked.substr(at + question.size());
  trims_answer_ = !has(answered, answer);
  const std::string words = trims_answer_ ? trimmed(answer) : answer;
  const std::size_t begin = answered.find(words, asked.size());
  if (begin == std::string::npos || eos_.empty() || answered.compare(begin + words.size(), eos_.size(), eos_) != 0)
    throw other;
  before_answer_ = answered.substr(asked.size(), begin - asked.size());
  after_answer_ = answered.substr(begin + words.size() + eos_.size());
}

/// Throws ConfigError unless render() writes these conversations as the template does.
void ChatTemplate::compare(const Tried& tried) {
  const ChatMessage system = {"system", " Be brief.\n"}, no_words = {"system", ""};
  const ChatMessage first = {"user", " \n first <b> \n\n"}, second = {"user", "second"};
  const ChatMessage answer = {"assistant", "\n <think>\nno\n</think>\n\nanswer \n"}, nothing = {"assistant", ""};
  const std::vector<ChatMessage> ordinary[] = {{first},
                                               {first, answer},
                                               {first, nothing, second},
                                               {second, answer, first, answer, second, nothing, second},
                                               {system, first},
                                               {no_words, second},
                                               {system, second, answer, first}};
  const std::vector<ChatMessage> others[] = {{answer, first},
                                             {first, second},
                                             {first, answer, answer},
                                             {second, system, answer},
                                             {first, answer, system, second}};
  for (const auto& messages : ordinary) compare(tried, messages);
  try {
    for (const auto& messages : others) compare(tried, messages);
  } catch (const JinjaRaised&) {
    takes_turns_ = true;
    for (const auto& messages : others) compare(tried, messages);  // of these only what render() refuses may be refused
  }
}

void ChatTemplate::compare(const Tried& tried, std::span<const ChatMessage> messages) const {
  for (const bool open : {false, true}) {
    std::string ours;
    try {
      ours = render(messages, open).text;
    } catch (const ConfigError&) {
      return;  // the family has no such conversations
    }
    const std::string theirs = tried.text(messages, open);
    if (ours != theirs)
      throw ConfigError(
          concat("a relative, which makes ", in_json(theirs), " of what this family makes ", in_json(ours)));
  }
}

void ChatTemplate::render_marked(std::span<const ChatMessage> messages, bool open, RenderedChat& out) const {
  const bool chat_ml = family_ == Family::ChatMl;
  const std::string begin = chat_ml ? "<|im_start|>" : "<|start_header_id|>";
  const std::string middle = chat_ml ? "\n" : "<|end_header_id|>\n\n", end = chat_ml ? "<|im_end|>" : "<|eot_id|>";
  const std::string next = chat_ml ? "\n" : "";
  const bool has_system = messages[0].role == "system";
  if (takes_turns_) check_turns(messages.subspan(has_system ? 1 : 0));
  if (!chat_ml) out.text += bos_;
  if (chat_ml && !has_system && !system_.empty()) out.text += begin + "system" + middle + system_ + end + next;
  if (!date_.empty()) {
    out.text += concat(kDateBegin, date_, "\n\n", has_system ? trimmed(messages[0].content) : "", end);
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
  if (messages.empty())
    throw ConfigError(rule_got_fix("a conversation must have messages.", "none", "a message at least"));
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant")
      throw ConfigError(rule_got_fix("a role is system, user or assistant.", "\"" + role + "\"", "\"role\": \"user\""));
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
                trims_answer_, takes_turns_ ? "; in turns" : "");
}

}  // namespace megatron::text
