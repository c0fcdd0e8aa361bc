#include "megatron/data/samples/chats/sft.h"
#include "megatron/data/samples/chats/cached_pair.h"

#include <simdjson.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/text/format.h"
#include "megatron/data/files/indexed_dataset.h"
#include "megatron/data/files/json_line.h"
#include "megatron/data/index/split.h"

namespace megatron::data {
namespace {

constexpr int kVersion = 2;  // raised when the same file begins to mean other tokens

/// Throws ConfigError with what is wrong, without its place.
class ChatParser {
 public:
  /// `line` is followed by simdjson::SIMDJSON_PADDING bytes that may be read.
  std::vector<text::ChatMessage> parse(std::string_view line) {
    simdjson::dom::element root;
    // Bounds how deep values are nested, and takes a constant number of bytes for each of the text.
    if (const auto error = parse_json_line(parser_, line, root)) fail(simdjson::error_message(error));
    const auto list = last_member(root, "messages");
    simdjson::dom::array array;
    if (!list || list->get(array) != simdjson::SUCCESS) fail("no messages");
    std::vector<text::ChatMessage> messages;
    for (const simdjson::dom::element message : array) {
      const auto field = [&](const char* name) {
        const auto value = last_member(message, name);
        if (!value || !value->is_string()) fail(concat("message ", messages.size() + 1, " without a text ", name));
        return std::string(value->get_string().value_unsafe());
      };
      std::string role = field("role");
      messages.push_back({std::move(role), field("content")});
    }
    return messages;
  }

 private:
  [[noreturn]] static void fail(const std::string& got) {
    throw ConfigError(rule_got_fix("a conversation is {\"messages\": [{\"role\": …, \"content\": …}, …]}.", got,
                                   "one such object per line"));
  }

  simdjson::dom::parser parser_;
};

}  // namespace

std::vector<std::int32_t> encode_chat(const text::RenderedChat& chat, text::Encoder& encoder) {
  text::Encoding encoding = encoder.encode_with_offsets(chat.text, text::Specials::Recognised);
  auto answer = chat.answers.begin();
  for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
    const text::ByteSpan span = encoding.bytes[i];
    while (answer != chat.answers.end() && answer->end < span.end) ++answer;
    const bool learned = answer != chat.answers.end() && span.begin >= answer->begin && span.end > answer->begin;
    if (!learned) encoding.ids[i] = ~encoding.ids[i];
  }
  return std::move(encoding.ids);
}

std::string build_chat_pair(const std::string& path, const text::Tokenizer& tokenizer,
                            const text::ChatTemplate& chat_template, const std::string& cache_folder,
                            const WaitMessage& say) {
  static constexpr CachedPair kChats{
      "SFTDataset", "chats", "conversations", "a conversation", "cut it into several conversations", kVersion};
  const auto make = [&]() -> EncodeLine {
    return [&, parser = std::make_shared<ChatParser>(),
            encoder = std::make_shared<text::Encoder>(tokenizer.encoder())](std::string_view line) {
      return std::vector<std::vector<std::int32_t>>{encode_chat(chat_template.render(parser->parse(line)), *encoder)};
    };
  };
  return build_cached_pair(kChats, path, tokenizer, chat_template.description(), cache_folder, make, say);
}

void check_learned(const std::string& path, const IndexedDataset& pair, const SequenceRange& range,
                   std::int64_t seq_length, Packing packing, const WaitMessage& say) {
  std::int64_t all = 0, kept = 0;
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = range.first; i < range.last; ++i) {
    tokens.resize(static_cast<std::size_t>(pair.length(i)));
    pair.read(i, 0, tokens);
    const auto learned = [&](std::size_t end) {  // the first token is no label
      return std::count_if(tokens.begin() + 1, tokens.begin() + static_cast<std::ptrdiff_t>(end),
                           [](std::int64_t token) { return token >= 0; });
    };
    if (tokens.size() < 2) continue;
    const std::size_t end =
        packing == Packing::Alone ? std::min(tokens.size(), static_cast<std::size_t>(seq_length) + 1) : tokens.size();
    all += learned(tokens.size());
    kept += learned(end);
  }
  if (range.size() > 0 && all == 0)
    throw EmptyPart(rule_got_fix(path + ": conversations must have something to learn: messages of the assistant.",
                                 concat(range.size(), " conversations without one"),
                                 "messages with \"role\": \"assistant\""));
  if (kept < all && kept == 0)
    throw EmptyPart(rule_got_fix(
        concat(path, ": messages of the assistant must begin within data.seq_length ", seq_length, "."),
        concat("none of ", range.size(), " conversations has one there"),
        "raise --data.seq_length, or --data.packed, which cuts conversations into pieces and loses nothing"));
  if (kept == all || !say) return;
  const std::string share = fmt::format("{:.3g}", 100 * static_cast<double>(all - kept) / static_cast<double>(all));
  say(concat("warning: ", path, ": ", share, " % of the tokens to learn (", all - kept, " of ", all,
             ") are beyond data.seq_length ", seq_length, " of their conversation and cut off"));
}

}  // namespace megatron::data
