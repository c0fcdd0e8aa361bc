#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

// Conversations as the text that a chat model was trained on. A model's folder says how by a template in Jinja, which
// is a programming language; here the templates of the common families are recognised and rendered to the same bytes as
// transformers' apply_chat_template. To be sure of that, the template itself is tried (chat/jinja.h) with a dozen short
// conversations. Any other is refused: a prompt that is nearly right makes a model nearly useless.
namespace megatron::text {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

struct RenderedChat {
  std::string text;
  /// Bytes [begin, end) that the assistant writes: its content and the mark that ends it. What training learns.
  struct Range {
    std::size_t begin, end;
  };
  std::vector<Range> answers;
};

/// The template of a family:
///
/// * ChatMl (SmolLM2, Qwen 1.5 to 2.5, many others): <|im_start|>ROLE\nCONTENT<|im_end|>\n, after the system message
///   that the template adds to conversations without one
/// * Llama3 (3 and 3.1): <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>; 3.1 begins with the date
///   that is written in its template
/// * Llama2: <s>[INST] <<SYS>>\nSYSTEM\n<</SYS>>\n\nUSER [/INST] ANSWER </s>
/// * Mistral: <s>[INST] USER [/INST]ANSWER</s>, with the blanks of the template at hand
class ChatTemplate {
 public:
  /// The template of a folder: chat_template.jinja, or `chat_template` in tokenizer_config.json, with that file's
  /// tokens that begin and end a text. Throws ConfigError where there is none, or one of another family.
  static ChatTemplate load(const std::filesystem::path& folder);

  /// `name` is what messages call it; `bos`, `eos`: the tokens that begin and end a text.
  ChatTemplate(const std::string& jinja, std::string bos, std::string eos, const std::string& name);

  /// @param open  end where the assistant's answer is to begin, as a prompt does
  /// Throws ConfigError for no messages, an unknown role, or turns in an order that the family does not have.
  RenderedChat render(std::span<const ChatMessage> messages, bool open = false) const;

  /// All that decides what is rendered, for cache keys.
  std::string description() const;

 private:
  enum class Family : std::uint8_t { ChatMl, Llama2, Llama3, Mistral };
  class Tried;
  void read_parts(const Tried& tried);
  void read_instructions(const Tried& tried);
  void compare(const Tried& tried);
  void compare(const Tried& tried, std::span<const ChatMessage> messages) const;
  void render_marked(std::span<const ChatMessage> messages, bool open, RenderedChat& out) const;
  void render_instructions(std::span<const ChatMessage> messages, RenderedChat& out) const;

  Family family_ = Family::ChatMl;
  std::string bos_, eos_;
  std::string system_;                        // ChatMl: of conversations without a system message
  std::string date_;                          // Llama3: of 3.1; empty: none is written
  std::string before_user_, after_user_;      // Mistral
  std::string before_answer_, after_answer_;  // Mistral; the latter after eos
  bool trims_answer_ = false;                 // Mistral
  bool takes_turns_ = false;                  // ChatMl, Llama3: the template raises an error unless they do
};

}  // namespace megatron::text
