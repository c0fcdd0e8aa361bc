#include "megatron/text/models/unigram.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/models/character_bpe.h"
#include "megatron/text/models/symbol_merge.h"

namespace megatron::text {
namespace {

class UnigramEncoder : public TextEncoder {
 public:
  explicit UnigramEncoder(const UnigramModel& model) : model_(model) {}

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) override {
    const std::int32_t unknown = model_.vocabulary().unigram->unknown;
    model_.search(piece, ways_);
    places_.clear();
    for (auto at = static_cast<std::uint32_t>(piece.size()); at > 0; at = ways_.last(at).begin) places_.push_back(at);
    std::reverse(places_.begin(), places_.end());
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const auto [begin, id] = ways_.last(places_[i]);
      if (id != unknown) {
        ids.push_back(id);
        if (ends != nullptr) ends->push_back(places_[i]);
        continue;
      }
      while (i + 1 < places_.size() && ways_.last(places_[i + 1]).id == unknown) ++i;  // neighbours are one token
      model_.encode_unknown(piece, begin, places_[i], ids, ends);
    }
  }

 private:
  const UnigramModel& model_;
  BestWays ways_;
  std::vector<std::uint32_t> places_;
};

}  // namespace

UnigramModel::UnigramModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "unigram") {
  const auto& tokens = this->vocabulary().tokens;
  const auto& scores = options().scores;
  if (scores.size() > tokens.size() || options().unknown >= static_cast<std::int32_t>(scores.size()))
    throw ConfigError(
        rule_got_fix("tokenizer: Unigram must have a score for each of its tokens, the unknown one among them",
                     concat(scores.size(), " scores, ", tokens.size(), " tokens, unknown ", options().unknown)));
  double lowest = 0;
  for (std::size_t id = 0; id < scores.size(); ++id) {
    if (!std::isfinite(scores[id]))
      throw ConfigError(
          rule_got_fix("tokenizer: a score must be a number", concat(scores[id], " of ", in_quotes(tokens[id]))));
    if (tokens[id].size() > kMaxTokenBytes)
      throw ConfigError(
          rule_got_fix(concat("tokenizer: a token of Unigram must have at most ", kMaxTokenBytes, " bytes"),
                       concat(tokens[id].size(), " bytes of id ", id)));
    lowest = id == 0 ? scores[id] : std::min(lowest, scores[id]);
    longest_ = std::max(longest_, tokens[id].size());
    if (!tokens[id].empty()) trie_.add(tokens[id], static_cast<std::int32_t>(id));
  }
  constexpr double kPenalty = 10;  // of an unknown character, below the least likely token (SentencePiece)
  unknown_score_ = lowest - kPenalty;
  byte_ids_ = fallback_bytes(*this);
}

std::unique_ptr<TextEncoder> UnigramModel::encoder(int) const { return std::make_unique<UnigramEncoder>(*this); }

void UnigramModel::search(std::string_view piece, BestWays& ways) const {
  check_mergeable(piece);
  ways.start(piece.size(), longest_);
  for (std::size_t at = 0, size = 0; at < piece.size(); at += size) {
    size = static_cast<std::size_t>(std::max(decode_utf8(piece.data() + at, piece.data() + piece.size()).length, 1));
    const double so_far = ways.score(at);
    bool is_token = false;
    trie_.for_each_prefix(piece.substr(at), [&](std::size_t length, std::int32_t id) {
      ways.reach(at, at + length, id, options().scores[static_cast<std::size_t>(id)] + so_far);
      is_token = is_token || length == size;
    });
    if (is_token) continue;
    if (options().unknown < 0)
      throw ConfigError(
          rule_got_fix("tokenizer: a text must be made of its tokens, of which none stands for unknown ones",
                       in_quotes(piece.substr(at, size)), "take the text out, or a tokenizer with an unknown token"));
    ways.reach(at, at + size, options().unknown, unknown_score_ + so_far);
  }
}

void UnigramModel::encode_unknown(std::string_view piece, std::size_t begin, std::size_t end,
                                  std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) const {
  const std::string_view text = piece.substr(begin, end - begin);
  const auto add = [&](std::int32_t id) {
    ids.push_back(id);
    if (ends != nullptr) ends->push_back(end);
  };
  const std::int32_t whole = own_id(text);
  const auto is_token = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
  if (whole >= 0)
    add(whole);
  else if (options().byte_fallback && std::all_of(text.begin(), text.end(), is_token))
    for (const char c : text) add(byte_ids_[static_cast<unsigned char>(c)]);
  else
    add(options().unknown);
}

}  // namespace megatron::text
