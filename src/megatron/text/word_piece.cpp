#include "megatron/text/word_piece.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/text/bert_text.h"
#include "megatron/text/byte_level.h"

namespace megatron::text {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

class WordPieceEncoder : public TextEncoder {
 public:
  explicit WordPieceEncoder(const WordPieceModel& model) : model_(model) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) override {
    for_each_bert_word(text, [&](std::string_view word) { model_.encode_word(word, scratch_, out); });
  }

 private:
  const WordPieceModel& model_;
  std::string scratch_;
};

}  // namespace

WordPieceModel::WordPieceModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "wordpiece") {
  const auto found = token_ids().find(options().unknown);
  if (found == token_ids().end())
    throw ConfigError(rule_got_fix("tokenizer: WordPiece's unknown token must be a token of the vocabulary",
                                   printable(options().unknown)));
  if (!this->vocabulary().merges.empty() || this->vocabulary().split_digits)
    throw ConfigError(rule_got_fix("tokenizer: WordPiece has no merges", concat(this->vocabulary().merges.size())));
  unknown_ = found->second;
  for (const std::string& token : this->vocabulary().tokens) longest_ = std::max(longest_, token.size());
}

std::unique_ptr<TextEncoder> WordPieceModel::encoder(int) const { return std::make_unique<WordPieceEncoder>(*this); }

void WordPieceModel::encode_word(std::string_view word, std::string& scratch, std::vector<std::int32_t>& out) const {
  const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return !continues_character(c); });
  if (characters > options().max_word_characters) return out.push_back(unknown_);
  const std::size_t before = out.size();
  std::string_view left = word;
  while (!left.empty()) {
    scratch.assign(left.size() < word.size() ? options().prefix : "");
    const std::size_t prefix = scratch.size();
    std::size_t size = std::min(left.size(), longest_);  // no longer piece can be a token
    scratch += left.substr(0, size);
    std::int32_t id = -1;
    for (; size > 0; --size) {
      if (size < left.size() && continues_character(left[size])) continue;
      const auto found = token_ids().find(std::string_view(scratch).substr(0, prefix + size));
      if (found == token_ids().end()) continue;
      id = found->second;
      break;
    }
    if (id < 0) {
      out.resize(before);
      return out.push_back(unknown_);
    }
    out.push_back(id);
    left.remove_prefix(size);
  }
}

std::string WordPieceModel::decode(std::span<const std::int32_t> ids) const {
  static constexpr std::pair<std::string_view, std::string_view> kCleanup[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  std::string text, token;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    token = vocabulary().tokens[static_cast<std::size_t>(ids[i])];
    if (i > 0) {
      if (token.starts_with(options().prefix))
        token.erase(0, options().prefix.size());
      else
        token.insert(0, 1, ' ');
    }
    if (options().cleanup)
      for (const auto& [from, to] : kCleanup) replace_all(token, from, to);
    text += token;
  }
  return text;
}

}  // namespace megatron::text
