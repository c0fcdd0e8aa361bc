#include "megatron/text/files/sentencepiece_file.h"

#include <cstring>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/byte_spelling.h"

namespace megatron::text {
namespace {

/// The fields of one message of a protocol buffer, one after the other.
class Message {
 public:
  Message(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  /// Goes to the next field; false at the end.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t key = varint();
    field_ = key >> 3;
    number_ = 0;
    data_ = {};
    switch (key & 7) {
      case 0:
        number_ = varint();
        break;
      case 1:
        data_ = take(8);
        break;
      case 2:
        data_ = take(varint());
        break;
      case 5:
        data_ = take(4);
        break;
      default:
        refuse();
    }
    return true;
  }

  std::uint64_t field() const { return field_; }
  std::uint64_t number() const { return number_; }
  bool flag() const { return number_ != 0; }
  std::string_view data() const { return data_; }
  Message message() const { return {data_, name_}; }
  float real() const {
    if (data_.size() != 4) refuse();
    float value = 0;
    std::memcpy(&value, data_.data(), 4);
    return value;
  }

 private:
  [[noreturn]] void refuse() const {
    throw ConfigError(rule_got_fix(name_ + ": must be a SentencePiece model", "a damaged field"));
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ < bytes_.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    refuse();
  }

  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size() - at_) refuse();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  std::string_view bytes_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::uint64_t field_ = 0, number_ = 0;
  std::string_view data_;
};

struct Model {
  Vocabulary vocabulary;
  SentencePiece pieces;
  normalizer::SentencePiece text;
  decoder::SentencePiece back;
  std::uint64_t kind = 1;  // Unigram, where the file does not say
};

void read_piece(Message message, Model& model, const std::string& name) {
  std::string piece;
  float score = 0;
  std::uint64_t type = 1;
  while (message.next()) {
    if (message.field() == 1) piece = message.data();
    if (message.field() == 2) score = message.real();
    if (message.field() == 3) type = message.number();
  }
  const std::size_t id = model.vocabulary.tokens.size();
  if (type < 1 || type > 6)
    throw ConfigError(
        rule_got_fix(concat(name, ": the type of a piece must be 1 to 6"), concat(type, " of piece ", id)));
  const auto kind = static_cast<SentencePiece::Type>(type);
  if (piece.empty()) throw ConfigError(rule_got_fix(name + ": a piece must not be empty", concat("piece ", id)));
  if (kind == SentencePiece::Type::Byte && spelled_byte(piece) < 0)
    throw ConfigError(rule_got_fix(name + ": a piece for a byte must be <0x00> … <0xFF>", in_quotes(piece)));
  if (kind == SentencePiece::Type::Control)
    model.vocabulary.specials.push_back({.content = piece, .id = static_cast<std::int32_t>(id)});
  if (kind == SentencePiece::Type::UserDefined) model.text.user_symbols.push_back(piece);
  model.pieces.types.push_back(kind);
  model.pieces.scores.push_back(score);
  model.vocabulary.tokens.push_back(std::move(piece));
}

void read_trainer(Message message, Model& model) {
  while (message.next()) {
    if (message.field() == 3) model.kind = message.number();
    if (message.field() == 24) model.text.space_is_suffix = message.flag();
    if (message.field() == 35) model.pieces.byte_fallback = message.flag();
    if (message.field() == 44) model.back.unknown_surface = message.data();
  }
}

void read_normalizer(Message message, Model& model) {
  while (message.next()) {
    if (message.field() == 2) model.text.charsmap = message.data();
    if (message.field() == 3) model.text.add_dummy_prefix = message.flag();
    if (message.field() == 4) model.text.remove_extra_spaces = message.flag();
    if (message.field() == 5) model.text.escape_spaces = message.flag();
  }
}

void check_denormalizer(Message message, const std::string& name) {
  while (message.next())
    if (message.field() == 2 && !message.data().empty())
      throw ConfigError(
          rule_got_fix(name + ": a model must not replace text after decoding (not supported)", "a denormalizer"));
}

}  // namespace

Vocabulary parse_sentencepiece_model(std::string_view bytes, const std::string& name, const std::string& file_name) {
  Model model;
  Message message(bytes, name);
  while (message.next()) {
    if (message.field() == 1) read_piece(message.message(), model, name);
    if (message.field() == 2) read_trainer(message.message(), model);
    if (message.field() == 3) read_normalizer(message.message(), model);
    if (message.field() == 5) check_denormalizer(message.message(), name);
  }
  if (model.vocabulary.tokens.empty())
    throw ConfigError(rule_got_fix(name + ": must be a SentencePiece model", "no pieces"));
  if (model.kind != 1 && model.kind != 2)
    throw ConfigError(rule_got_fix(name + ": a SentencePiece model must be Unigram or BPE (others are not supported)",
                                   concat("type ", model.kind)));
  model.pieces.unigram = model.kind == 1;
  model.back.drop_first_space = model.text.add_dummy_prefix || model.text.remove_extra_spaces;
  model.back.drop_all_first_spaces = model.text.remove_extra_spaces;
  Vocabulary vocabulary = std::move(model.vocabulary);
  vocabulary.sentence_piece = std::move(model.pieces);
  vocabulary.pipeline.emplace();
  vocabulary.pipeline->normalizers = {std::move(model.text)};
  vocabulary.pipeline->decoders = {std::move(model.back)};
  vocabulary.source = SourceFile{file_name, std::string(bytes)};
  return vocabulary;
}

}  // namespace megatron::text
