#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "megatron/text/chat_template.h"

// Requests as OpenAI's API has them, checked before anything is computed: sizes, types, ranges; a field that is not
// known, or asks for what is not there, is refused rather than ignored.
namespace megatron::serve {

/// What requests may ask for.
struct RequestLimits {
  std::int64_t choices = 128;        ///< prompts times n
  std::int64_t inputs = 2048;        ///< texts of a request for embeddings, as OpenAI has it
  std::int64_t stop_sequences = 16;  ///< each of at most stop_bytes
  std::int64_t stop_bytes = 256;
  std::int64_t top_logprobs = 20;
  std::int64_t biases = 1024;
  std::int64_t messages = 4096;
  std::int64_t tools = 128;  ///< and calls of one message
};

/// A text, or its tokens.
using Prompt = std::variant<std::string, std::vector<std::int64_t>>;

/// What the fields of completions and chats have in common.
struct Sampling {
  double temperature = 1, top_p = 1;
  int top_k = 0;  ///< 0: all, for which a request may say -1 too; vLLM's field
  double min_p = 0;
  double presence_penalty = 0, frequency_penalty = 0;
  double repetition_penalty = 1;  ///< Keskar et al. 2019, of the prompt's tokens too; transformers' and vLLM's field
  std::optional<std::uint64_t> seed = {};
  std::map<std::int64_t, double> logit_bias = {};
};

/// A function that the model may call.
struct Tool {
  std::string name = {};
  nlohmann::ordered_json parameters = {};  ///< the JSON Schema of its arguments; null: it has none
  bool strict = false;                     ///< its arguments must obey the schema, however it comes to be called
};

enum class ToolChoice : std::uint8_t { None, Auto, Required, Function };

/// What a chat says of tools. With ToolChoice::None there are none.
struct ToolUse {
  ToolChoice choice = ToolChoice::None;
  std::vector<Tool> tools = {};
  nlohmann::ordered_json definitions = {};  ///< as the chat template takes them; null where there are none
  std::size_t function = 0;                 ///< of tools, the one to call, of ToolChoice::Function
  bool parallel = true;                     ///< an answer may have more than one call
};

struct Request {
  bool chat = false;
  std::string model = {};                        ///< "": whatever is served
  std::vector<Prompt> prompts = {};              ///< of a completion
  std::vector<text::ChatMessage> messages = {};  ///< of a chat
  ToolUse tools = {};                            ///< of a chat
  Sampling sampling = {};
  std::optional<std::int64_t> max_tokens = {};
  std::int64_t n = 1;
  std::vector<std::string> stop = {};
  bool stream = false, include_usage = false;
  bool echo = false;  ///< the prompt is part of the text
  /// Likeliest tokens to name with each token; nothing: no log-probabilities.
  std::optional<std::int64_t> logprobs = {};
  /// The JSON Schema that the text must satisfy.
  std::optional<nlohmann::ordered_json> schema = {};
  /// A prompt that is a text begins with what the tokenizer's template sets before one (<s>), as its model is used to;
  /// vLLM's field. Of a chat the chat template says all, unless this is asked for.
  bool add_special_tokens = true;
  bool ignore_eos = false;  ///< the text continues past its end token; vLLM's field
};

/// Texts of which each is to become a vector.
struct EmbeddingRequest {
  std::string model = {};
  std::vector<Prompt> inputs = {};
  bool add_special_tokens = true;  ///< a text stands between what the tokenizer's template sets; vLLM's field
  bool base64 = false;             ///< the vectors as the base64 of little-endian float32, not as numbers
};

/// Throw ApiError 400 for a body that is no such request.
EmbeddingRequest parse_embedding(std::string_view body, const RequestLimits& limits = {});
Request parse_completion(std::string_view body, const RequestLimits& limits = {});
Request parse_chat(std::string_view body, const RequestLimits& limits = {});

}  // namespace megatron::serve
