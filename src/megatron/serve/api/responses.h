#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "megatron/text/tokenizer.h"

// Responses as OpenAI's API has them.
namespace megatron::serve {

/// A token and what the model found of it, before temperature, biases and masks.
struct ScoredToken {
  struct Choice {
    std::int64_t id = 0;
    double logprob = 0;
  };
  std::int64_t id = 0;
  std::optional<double> logprob = {};  ///< nothing: of the first token of a text, and where none was asked for
  std::vector<Choice> likeliest = {};  ///< from the likeliest on
};

enum class Finish : std::uint8_t { Stop, Length, ToolCalls };

/// A piece of a call of a function, or all of it.
struct ToolCallPiece {
  std::size_t index = 0;  ///< of the call in its answer
  std::string id = {};    ///< of a call's first piece, as is the name
  std::string name = {};
  std::string arguments = {};  ///< a piece of the JSON text
};

/// What all responses of one request share.
struct ResponseHead {
  std::string id = {};  ///< "cmpl-…", "chatcmpl-…"
  std::int64_t created = 0;
  std::string model = {};
  bool chat = false;
  bool tools = false;  ///< texts may be calls instead: a message's content may be null
};

/// A piece of one choice's text, or all of it.
struct ChoicePiece {
  std::int64_t index = 0;
  std::string text = {};
  bool first = false;  ///< of a streamed chat: says the role
  std::optional<Finish> finish = {};
  nlohmann::ordered_json logprobs = {};  ///< null, or of log_probabilities()
  std::vector<ToolCallPiece> calls = {};
};

struct Usage {
  std::int64_t prompt = 0, completion = 0;
  std::int64_t cached = 0;  ///< of the prompt's, that were not read again
};

/// The bytes of one token's text; "" for an id without one.
std::string token_bytes(const text::Tokenizer& tokenizer, std::int64_t id);

/// Of a text as JSON has it: of bytes that are no UTF-8, those that begin a character that does not end are one.
std::int64_t characters_of(const std::string& text);

/// The `logprobs` of a choice. `offsets`: the characters of the text before each token, of completions alone.
nlohmann::ordered_json log_probabilities(const text::Tokenizer& tokenizer, bool chat,
                                         const std::vector<ScoredToken>& tokens,
                                         const std::vector<std::int64_t>& offsets = {});

/// A whole response.
std::string response_json(const ResponseHead& head, const std::vector<ChoicePiece>& choices, const Usage& usage);
/// One piece of a streamed one.
std::string chunk_json(const ResponseHead& head, const ChoicePiece& piece);
/// The last piece where usage was asked for.
std::string usage_chunk_json(const ResponseHead& head, const Usage& usage);

/// The response to a request for embeddings, in the order of its texts. `base64`: EmbeddingRequest.
std::string embeddings_json(const std::string& model, const std::vector<std::vector<float>>& embeddings, bool base64,
                            std::int64_t prompt_tokens);

/// What /v1/models says of the models of a server, which have that in common.
struct ModelsHead {
  std::int64_t created = 0, context = 0;
};
/// A model that requests may name.
struct ServedModel {
  std::string name = {};
  std::string parent = {};  ///< of an adapter the name of its base; "": it is the base
};
/// {"object": "list", "data": [{"id", "object": "model", …}]}
std::string models_json(const std::vector<ServedModel>& models, const ModelsHead& head);
std::string model_json(const ServedModel& model, const ModelsHead& head);

/// Server-sent events (text/event-stream): "data: …", a line of it each, and an empty line.
std::string event(std::string_view data);
inline constexpr const char* kStreamEnd = "data: [DONE]\n\n";

}  // namespace megatron::serve
