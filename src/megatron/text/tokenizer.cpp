#include "megatron/text/tokenizer.h"

#include <algorithm>

#include "megatron/base/collected_errors.h"
#include "megatron/base/error.h"
#include "megatron/text/decode/decode.h"
#include "megatron/text/files/sentinels.h"
#include "megatron/text/files/tokenizer_files.h"
#include "megatron/text/models/tokenizer_model.h"

namespace megatron::text {
namespace {

Framed framed(const std::vector<Template::Item>& items, std::span<const std::int32_t> first,
              std::span<const std::int32_t> second) {
  Framed result;
  const auto add = [&](std::span<const std::int32_t> ids, std::int32_t type) {
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.types.resize(result.ids.size(), type);
  };
  for (const Template::Item& item : items) {
    if (item.kind == Template::Kind::Token)
      add({&item.token, 1}, item.type);
    else
      add(item.kind == Template::Kind::First ? first : second, item.type);
  }
  if (items.empty()) add(first, 0), add(second, 0);
  return result;
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& path, std::string_view type, std::int64_t extra_ids) {
  return with_fix("name another tokenizer, or copy all files of this one again", [&] {
    Vocabulary vocabulary = read_vocabulary(path, type);
    add_extra_ids(extra_ids, path.string(), vocabulary);
    return Tokenizer(std::move(vocabulary));
  });
}

Tokenizer::Tokenizer(Vocabulary vocabulary) : model_(make_model(std::move(vocabulary))) {}

void Tokenizer::save(const std::filesystem::path& folder) const { write_vocabulary(model_->vocabulary(), folder); }

Encoder Tokenizer::encoder() const { return Encoder(model_); }

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  for (const std::int32_t id : ids) id_to_bytes(id);  // checks it
  return model_->decode(ids);
}

Framed Tokenizer::frame(std::span<const std::int32_t> first) const {
  return framed(model_->vocabulary().frame.single, first, {});
}

Framed Tokenizer::frame(std::span<const std::int32_t> first, std::span<const std::int32_t> second) const {
  return framed(model_->vocabulary().frame.pair, first, second);
}

std::int32_t Tokenizer::vocab_size() const { return static_cast<std::int32_t>(model_->vocabulary().tokens.size()); }

std::string_view Tokenizer::id_to_bytes(std::int32_t id) const {
  if (id < 0 || id >= vocab_size())
    throw ConfigError(rule_got_fix(concat("token ids must be 0 … ", vocab_size() - 1), concat("id ", id),
                                   "ids that this tokenizer has made"));
  return model_->vocabulary().tokens[static_cast<std::size_t>(id)];
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view bytes) const {
  const std::int32_t found = model_->token_ids().find(bytes);
  return found < 0 ? std::nullopt : std::optional(found);
}

std::optional<std::int32_t> Tokenizer::find_eod_id() const {
  if (const auto id = model_->vocabulary().end_of_text) return id;
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "[EOS]", "[SEP]"})
    if (const auto id = token_to_id(name)) return id;
  return std::nullopt;
}

std::int32_t Tokenizer::eod_id() const {
  if (const auto id = find_eod_id()) return *id;
  throw ConfigError(
      rule_got_fix("tokenizer: the end of documents is the token <|endoftext|>, <|end_of_text|>, </s>, [EOS] or [SEP]",
                   concat("a vocabulary of ", vocab_size(), " tokens without them"),
                   "a tokenizer that has one of them, or leave out what needs it (--append-eod and the like)"));
}

const std::string& Tokenizer::fingerprint() const { return model_->fingerprint(); }

const Vocabulary& Tokenizer::vocabulary() const { return model_->vocabulary(); }

StreamDecoder::StreamDecoder(Tokenizer tokenizer)
    : tokenizer_(std::move(tokenizer)), decoding_(std::make_unique<Decoding>(tokenizer_.vocabulary())) {}
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(std::int32_t id) {
  tokenizer_.id_to_bytes(id);  // checks it
  decoding_->push(id, pending_);
  // Keep back a lead byte among the last three whose character is not complete yet, if what is there could begin one.
  std::size_t keep_from = pending_.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, pending_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(pending_[pending_.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    const std::size_t length = byte >= 0xC2 && byte < 0xE0   ? 2
                               : byte >= 0xE0 && byte < 0xF0 ? 3
                               : byte >= 0xF0 && byte < 0xF5 ? 4
                                                             : 1;
    if (length > back) keep_from = pending_.size() - back;
    break;
  }
  std::string ready = pending_.substr(0, keep_from);
  pending_.erase(0, keep_from);
  return ready;
}

std::string StreamDecoder::finish() {
  decoding_->finish(pending_);
  decoding_ = std::make_unique<Decoding>(tokenizer_.vocabulary());
  return std::exchange(pending_, {});
}

}  // namespace megatron::text
