#include "megatron/data/sft.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/text_reader.h"

namespace megatron::data {
namespace {

constexpr int kVersion = 2;  // raised when the same file begins to mean other tokens

/// Throws ConfigError with what is wrong, without its place.
std::vector<text::ChatMessage> parse_messages(std::string_view line) {
  const auto fail = [](const std::string& got) {
    throw ConfigError(rule_got_fix("a conversation is {\"messages\": [{\"role\": …, \"content\": …}, …]}.", got));
  };
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) fail("no JSON");
  if (!object.is_object() || !object.contains("messages") || !object["messages"].is_array()) fail("no messages");
  std::vector<text::ChatMessage> messages;
  for (const auto& message : object["messages"]) {
    const auto field = [&](const char* name) {
      if (!message.is_object() || !message.contains(name) || !message[name].is_string())
        fail(concat("message ", messages.size() + 1, " without a text ", name));
      return message[name].get<std::string>();
    };
    messages.push_back({field("role"), field("content")});
  }
  return messages;
}

void tokenize_file(const std::string& path, const std::string& prefix, const text::Tokenizer& tokenizer,
                   const text::ChatTemplate& chat_template) {
  BlockReader reader({.inputs = {path}, .format = TextFormat::Jsonl});
  IndexedDatasetWriter writer(prefix, DType::I32);
  text::Encoder encoder = tokenizer.encoder();
  Progress progress("tokenize " + path, "bytes", reader.total_bytes().value_or(0));
  for (TextBlock block; reader.next(block); progress.update(block.input_position))
    for (const TextBlock::Record& record : block.records) {
      std::vector<std::int32_t> tokens;
      try {
        if (record.too_long) throw ConfigError(rule_got_fix("a conversation has at most 64 MiB.", "more"));
        const auto messages = parse_messages(std::string_view(block.bytes).substr(record.begin, record.size));
        tokens = encode_chat(chat_template.render(messages), encoder);
      } catch (const ConfigError& error) {
        throw ConfigError(concat(path, ", line ", record.line, ": ", error.what()));
      }
      const auto length = static_cast<std::int32_t>(tokens.size());
      writer.add_document(tokens, {&length, length > 0 ? std::size_t{1} : std::size_t{0}});
    }
  writer.publish();
}

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
  const std::filesystem::path file = path;
  std::error_code missing;
  const auto size = std::filesystem::file_size(file, missing);
  if (missing) throw ConfigError(rule_got_fix("conversations must be in a readable file.", path));
  const auto changed = std::filesystem::last_write_time(file).time_since_epoch().count();
  const auto folder =
      cache_folder.empty() ? file.parent_path() / "cache" / "SFTDataset_indices" : std::filesystem::path(cache_folder);
  const CacheEntry entry(folder, "SFTDataset",
                         concat("version: ", kVersion, "\nfile: ", std::filesystem::absolute(file).string(),
                                "\nbytes: ", size, "\nchanged: ", changed, "\ntokenizer: ", tokenizer.fingerprint(),
                                "\ntemplate: ", chat_template.description(), "\n"));
  build_once(
      entry, {"chats.idx", "chats.bin"}, [&] { tokenize_file(path, entry.file("chats"), tokenizer, chat_template); },
      say);
  return entry.file("chats");
}

}  // namespace megatron::data
