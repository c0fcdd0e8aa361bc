#pragma once
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/text/chat/jinja.h"

// Conversations as the text that a chat model was trained on. A model's folder says how by a template in Jinja, which
// is rendered to the bytes of transformers' apply_chat_template (chat/jinja.h), or is an error: a prompt that is nearly
// right makes a model nearly useless.
namespace megatron::text {

/// A function that the assistant called.
struct ChatToolCall {
  std::string id, name;
  std::string arguments;  ///< the JSON text of an object, as which templates see it
};

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"; "tool" where tool_call_id says what it answers
  std::string content;
  std::vector<ChatToolCall> tool_calls = {};  ///< of the assistant
  std::string tool_call_id = {}, name = {};   ///< of a tool; the name: "" where nothing names it
};

/// What a template itself says by raise_exception() of a conversation: of roles that it does not have, or in this
/// order.
struct ConversationRefused : ConfigError {
  using ConfigError::ConfigError;
};

struct RenderedChat {
  std::string text;
  using Range = JinjaText::Range;
  /// Bytes [begin, end) that the assistant writes: its content and the mark that ends it. What training learns.
  std::vector<Range> answers;
};

class ChatTemplate {
 public:
  /// The special tokens that a template may write, by their names in tokenizer_config.json: "bos_token", "eos_token" …
  using Tokens = std::map<std::string, std::string>;

  /// The template of a folder, or of that of a tokenizer's file: chat_template.jinja, or `chat_template` in
  /// tokenizer_config.json (of several the one named "default"), with that file's tokens; or of a GGUF file, with those
  /// of its tokenizer. Throws ConfigError where there is none, or it is no template.
  static ChatTemplate load(const std::filesystem::path& path);

  /// `name` is what messages call it. strftime_now() is the time at which this is called.
  ChatTemplate(const std::string& jinja, Tokens tokens, std::string name);

  /// The conversation up to where the assistant's next answer is to begin. `tools`: a list of functions that it may
  /// call, in the form of OpenAI's API, or null. Throws ConversationRefused; and ConfigError for no messages, an
  /// unknown role, or what the template does that is not known here.
  std::string prompt(std::span<const ChatMessage> messages, const nlohmann::ordered_json* tools = nullptr) const;
  /// The whole conversation as prompt() writes it, without the beginning of an answer.
  std::string closed(std::span<const ChatMessage> messages, const nlohmann::ordered_json* tools) const;

  /// The whole conversation. Its answers are what {% generation %} marks. Where the template has none, an answer is
  /// what the conversation up to it adds to the prompt before it, without the white space that separates it from the
  /// next turn: the model is stopped by the mark before that. Throws ConfigError as prompt(), and where a turn of the
  /// assistant is not simply added to what was before it, so that what it wrote cannot be told.
  RenderedChat render(std::span<const ChatMessage> messages) const;

  /// Whether the template has the word anywhere: one that does not have "tools" leaves them out.
  bool mentions(std::string_view word) const { return source_.find(word) != std::string::npos; }

  /// All that decides what is rendered, for cache keys.
  std::string description() const;

 private:
  JinjaText rendered(std::span<const ChatMessage> messages, bool open,
                     const nlohmann::ordered_json* tools = nullptr) const;

  Jinja jinja_;
  std::string source_;
  Tokens tokens_;
  std::string name_;
  std::tm now_ = {};
};

}  // namespace megatron::text
