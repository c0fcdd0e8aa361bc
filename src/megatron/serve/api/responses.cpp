#include "megatron/serve/api/responses.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/base/text/utf8.h"
#include "megatron/text/files/base64.h"

namespace megatron::serve {
namespace {

using Ordered = nlohmann::ordered_json;

std::string dumped(const Ordered& object) { return object.dump(-1, ' ', false, Ordered::error_handler_t::replace); }

/// How many bytes at the front, 1 … 3, begin one character that does not end, or are none.
std::size_t bytes_of_part(std::string_view text) {
  // A part is one where some bytes make it whole.
  for (std::size_t count = std::min<std::size_t>(3, text.size()); count > 1; --count)
    for (const char* rest : {"\x80\x80", "\x90\x80", "\xA0\x80"}) {
      const std::string whole = std::string(text.substr(0, count)) + rest;
      if (decode_utf8(whole.data(), whole.data() + whole.size()).length > static_cast<int>(count)) return count;
    }
  return 1;
}

Ordered finish_of(const ChoicePiece& piece) {
  if (!piece.finish) return nullptr;
  switch (*piece.finish) {
    case Finish::Stop:
      return "stop";
    case Finish::Length:
      return "length";
    case Finish::ToolCalls:
      return "tool_calls";
  }
  return nullptr;
}

/// As members of a message, or of a `chunk`'s delta.
Ordered calls_json(const std::vector<ToolCallPiece>& calls, bool chunk) {
  Ordered list = Ordered::array();
  for (const ToolCallPiece& call : calls) {
    Ordered one = Ordered::object(), function = Ordered::object();
    if (chunk) one["index"] = call.index;
    if (!call.id.empty()) {
      one["id"] = call.id;
      one["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    one["function"] = function;
    list.push_back(one);
  }
  return list;
}

Ordered usage_of(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt},
          {"completion_tokens", usage.completion},
          {"total_tokens", usage.prompt + usage.completion},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached}}}};
}

Ordered head_of(const ResponseHead& head, bool chunk) {
  const char* object = !head.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Ordered piece_of(const ResponseHead& head, const ChoicePiece& piece, bool chunk) {
  Ordered choice{{"index", piece.index}};
  if (!head.chat) {
    choice["text"] = piece.text;
  } else if (!chunk) {
    choice["message"] = {{"role", "assistant"}, {"content", piece.text}, {"refusal", nullptr}};
    if (!piece.calls.empty()) choice["message"]["tool_calls"] = calls_json(piece.calls, chunk);
    if (!piece.calls.empty() && piece.text.empty()) choice["message"]["content"] = nullptr;
  } else {
    Ordered delta = Ordered::object();
    if (piece.first) delta["role"] = "assistant";
    if (piece.first || !piece.text.empty()) delta["content"] = piece.text;
    if (head.tools && piece.text.empty() && piece.first) delta["content"] = nullptr;
    if (!piece.calls.empty()) delta["tool_calls"] = calls_json(piece.calls, chunk);
    choice["delta"] = delta;
  }
  choice["logprobs"] = piece.logprobs;
  choice["finish_reason"] = finish_of(piece);
  return choice;
}

/// Bytes of a token as a JSON string: those that are no text of their own are named, as OpenAI names them.
std::string shown(const std::string& bytes) {
  if (valid_utf8(bytes)) return bytes;
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "bytes:";
  for (const unsigned char byte : bytes) text += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

Ordered number_or_null(const std::optional<double>& value) { return value ? Ordered(*value) : Ordered(); }

Ordered of_completion(const text::Tokenizer& tokenizer, const std::vector<ScoredToken>& tokens,
                      const std::vector<std::int64_t>& offsets) {
  Ordered names = Ordered::array(), values = Ordered::array(), tops = Ordered::array();
  for (const ScoredToken& token : tokens) {
    const std::string bytes = token_bytes(tokenizer, token.id);
    names.push_back(shown(bytes));
    values.push_back(number_or_null(token.logprob));
    Ordered top = Ordered::object();
    for (const auto& [id, logprob] : token.likeliest) top[shown(token_bytes(tokenizer, id))] = logprob;
    tops.push_back(token.logprob ? top : Ordered());
  }
  return {{"tokens", names}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

Ordered of_chat(const text::Tokenizer& tokenizer, const std::vector<ScoredToken>& tokens) {
  const auto entry = [&](std::int64_t id, const std::optional<double>& logprob) {
    const std::string bytes = token_bytes(tokenizer, id);
    Ordered numbers = Ordered::array();
    for (const unsigned char byte : bytes) numbers.push_back(byte);
    return Ordered{{"token", shown(bytes)}, {"logprob", number_or_null(logprob)}, {"bytes", numbers}};
  };
  Ordered content = Ordered::array();
  for (const ScoredToken& token : tokens) {
    Ordered one = entry(token.id, token.logprob), top = Ordered::array();
    for (const auto& [id, logprob] : token.likeliest) top.push_back(entry(id, logprob));
    one["top_logprobs"] = top;
    content.push_back(one);
  }
  return {{"content", content}, {"refusal", nullptr}};
}

Ordered described(const ServedModel& model, const ModelsHead& head) {
  Ordered fields = {{"id", model.name},
                    {"object", "model"},
                    {"created", head.created},
                    {"owned_by", "megatron"},
                    {"max_model_len", head.context}};
  if (!model.parent.empty()) fields["parent"] = model.parent;
  return fields;
}

}  // namespace

std::string token_bytes(const text::Tokenizer& tokenizer, std::int64_t id) {
  if (id < 0 || id >= tokenizer.vocab_size()) return "";
  return std::string(tokenizer.id_to_bytes(static_cast<std::int32_t>(id)));
}

std::int64_t characters_of(const std::string& text) {
  std::int64_t count = 0;
  std::size_t part_ends = 0;  // of bytes that begin a character without an end, for which one is written
  for_each_character(text, [&](const DecodedChar& character, std::size_t begin, std::size_t) {
    if (begin < part_ends) return;
    ++count;
    if (character.length == 0) part_ends = begin + bytes_of_part(std::string_view(text).substr(begin));
  });
  return count;
}

Ordered log_probabilities(const text::Tokenizer& tokenizer, bool chat, const std::vector<ScoredToken>& tokens,
                          const std::vector<std::int64_t>& offsets) {
  return chat ? of_chat(tokenizer, tokens) : of_completion(tokenizer, tokens, offsets);
}

std::string response_json(const ResponseHead& head, const std::vector<ChoicePiece>& choices, const Usage& usage) {
  Ordered object = head_of(head, false), list = Ordered::array();
  for (const ChoicePiece& choice : choices) list.push_back(piece_of(head, choice, false));
  object["choices"] = std::move(list);
  object["usage"] = usage_of(usage);
  return dumped(object);
}

std::string chunk_json(const ResponseHead& head, const ChoicePiece& piece) {
  Ordered object = head_of(head, true);
  object["choices"] = Ordered::array({piece_of(head, piece, true)});
  return dumped(object);
}

std::string usage_chunk_json(const ResponseHead& head, const Usage& usage) {
  Ordered object = head_of(head, true);
  object["choices"] = Ordered::array();
  object["usage"] = usage_of(usage);
  return dumped(object);
}

std::string embeddings_json(const std::string& model, const std::vector<std::vector<float>>& embeddings, bool base64,
                            std::int64_t prompt_tokens) {
  Ordered data = Ordered::array();
  for (const std::vector<float>& one : embeddings) {
    const std::string_view bytes(reinterpret_cast<const char*>(one.data()), one.size() * sizeof(float));
    data.push_back({{"object", "embedding"},
                    {"index", data.size()},
                    {"embedding", base64 ? Ordered(text::to_base64(bytes)) : Ordered(one)}});
  }
  return dumped({{"object", "list"},
                 {"data", std::move(data)},
                 {"model", model},
                 {"usage", {{"prompt_tokens", prompt_tokens}, {"total_tokens", prompt_tokens}}}});
}

std::string models_json(const std::vector<ServedModel>& models, const ModelsHead& head) {
  Ordered data = Ordered::array();
  for (const ServedModel& model : models) data.push_back(described(model, head));
  return dumped({{"object", "list"}, {"data", data}});
}

std::string model_json(const ServedModel& model, const ModelsHead& head) { return dumped(described(model, head)); }

std::string event(std::string_view data) {
  std::string text;
  for (std::size_t at = 0;;) {
    const std::size_t end = data.find_first_of("\r\n", at);
    text += "data: ";
    text += data.substr(at, end - at);
    text += '\n';
    if (end == std::string_view::npos) break;
    at = end + (data.substr(end, 2) == "\r\n" ? 2 : 1);
  }
  return text + '\n';
}

}  // namespace megatron::serve
