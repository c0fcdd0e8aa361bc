#include "megatron/text/models/sentencepiece_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/base/text/printable.h"
#include "megatron/text/characters/byte_level.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/models/character_bpe.h"
#include "megatron/text/models/unigram.h"

namespace megatron::text {
namespace {

std::size_t character_size(std::string_view text, std::size_t at) {
  return static_cast<std::size_t>(std::max(decode_utf8(text.data() + at, text.data() + text.size()).length, 1));
}

/// A piece that was looked up last; most come again soon.
struct Known {
  std::string_view piece;
  std::int32_t id = -1;
};

}  // namespace

template <class Put>
void SentencePieceModel::merge(std::string_view text, std::vector<Symbol>& symbols, MergeRoom& room,
                               const Put& put) const {
  check_mergeable(text);
  std::unordered_map<std::int32_t, std::uint32_t> unused;  // bytes of the left half that such a piece was made of
  std::array<Known, 16> known;  // the last pieces by size: of a run of one character there are few
  const auto pair = [&](const Symbol& left, const Symbol& right) -> SymbolPair {
    const std::string_view piece = text.substr(left.begin, right.end - left.begin);
    Known& last = known[piece.size() % known.size()];
    if (last.piece != piece) last = {piece, usable(piece)};
    const std::int32_t id = last.id;
    if (id < 0) return {};
    if (type(id) == Type::Unused) unused[id] = left.end - left.begin;
    return {ranks_[static_cast<std::size_t>(id)], id};
  };
  Known alone;
  const auto put_whole = [&](TokenSpan part) {
    if (part.id < 0) {  // nothing was merged to it
      const std::string_view piece = text.substr(part.begin, part.end - part.begin);
      if (alone.piece != piece) {
        const std::int32_t found = token_ids().find(piece);
        alone = {piece, found < 0 ? unknown_ : found};
      }
      part.id = alone.id;
    }
    const auto halves = type(part.id) == Type::Unused ? unused.find(part.id) : unused.end();
    if (halves == unused.end()) put(part);
    return halves == unused.end() ? 0 : halves->second;
  };
  std::vector<TokenSpan> open;  // what may have to be cut again, the first last
  const auto finish = [&] {
    if (symbols.size() > 1) merge_symbols(symbols, room, ranks_.size(), pair);
    for (const Symbol& symbol : symbols) {
      open.push_back({symbol.begin, symbol.end, symbol.id});
      while (!open.empty()) {
        const TokenSpan part = open.back();
        open.pop_back();
        const std::uint32_t left = put_whole(part);
        if (left == 0) continue;
        open.push_back({part.begin + left, part.end});
        open.push_back({part.begin, part.begin + left});
      }
    }
    symbols.clear();
  };
  for (std::size_t at = 0, end = 0; at < text.size(); at = end) {
    const std::size_t user = user_symbols_.longest(text.substr(at)).first;
    const DecodedChar c = decode_utf8(text.data() + at, text.data() + text.size());
    end = at + (user > 0 ? user : static_cast<std::size_t>(std::max(c.length, 1)));
    const TokenSpan part{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(end)};
    // What nothing is merged with parts the symbols before it from those behind it.
    if (user == 0 && merging_.has(c.code_point)) {
      symbols.push_back({.begin = part.begin, .end = part.end});
    } else {
      finish();
      put_whole(part);
    }
  }
  finish();
}

namespace {

class SentencePieceEncoder : public TextEncoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceModel& model) : model_(model) {}

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) override {
    bool after_unknown = false;
    const auto put = [&](const SentencePieceModel::TokenSpan& part) {
      model_.write(piece, part, after_unknown, ids, ends);
    };
    if (!model_.vocabulary().sentence_piece->unigram) return model_.merge(piece, symbols_, room_, put);
    parts_.clear();
    model_.unigram(piece, ways_, parts_);
    for (const SentencePieceModel::TokenSpan& part : parts_) put(part);
  }

 private:
  const SentencePieceModel& model_;
  BestWays ways_;
  std::vector<SentencePieceModel::TokenSpan> parts_;
  std::vector<Symbol> symbols_;
  MergeRoom room_;
};

}  // namespace

SentencePieceModel::SentencePieceModel(Vocabulary vocabulary) : TokenizerModel(std::move(vocabulary), "sentencepiece") {
  check();
  byte_ids_ = fallback_bytes(*this);
  const auto& tokens = this->vocabulary().tokens;
  lowest_ = std::numeric_limits<float>::max();
  highest_ = std::numeric_limits<float>::min();  // the smallest positive one: as SentencePiece begins
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    longest_ = std::max(longest_, tokens[i].size());
    if (type(id) == Type::Unknown) unknown_ = id;
    if (type(id) == Type::Normal) {
      lowest_ = std::min(lowest_, options().scores[i]);
      highest_ = std::max(highest_, options().scores[i]);
    }
    if (type(id) == Type::UserDefined) user_symbols_.add(tokens[i], id);
    if (options().unigram && (type(id) == Type::Normal || type(id) == Type::UserDefined)) trie_.add(tokens[i], id);
    if (options().unigram || usable(tokens[i]) < 0) continue;
    for_each_character(tokens[i], [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
      if (end - begin < tokens[i].size()) merging_.add(c.code_point);
    });
  }
  rank_scores();
}

void SentencePieceModel::check() const {
  const auto& tokens = vocabulary().tokens;
  const auto refuse = [](const std::string& rule, const std::string& got) {
    throw ConfigError(rule_got_fix("tokenizer: " + rule, got));
  };
  if (options().types.size() != tokens.size() || options().scores.size() != tokens.size())
    refuse("each piece must have a type and a score", concat(tokens.size(), " pieces"));
  if (std::count(options().types.begin(), options().types.end(), Type::Unknown) != 1)
    refuse("one piece must be the unknown one",
           concat(std::count(options().types.begin(), options().types.end(), Type::Unknown), " are"));
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) refuse("a piece must not be empty", concat("id ", id));
    if (!std::isfinite(options().scores[id])) refuse("a score must be a number", in_quotes(tokens[id]));
    if (tokens[id].size() > UnigramModel::kMaxTokenBytes)
      refuse(concat("a piece must have at most ", UnigramModel::kMaxTokenBytes, " bytes"),
             concat(tokens[id].size(), " bytes of id ", id));
  }
  const auto bytes = fallback_bytes(*this);
  if (options().byte_fallback && std::any_of(bytes.begin(), bytes.end(), [](std::int32_t id) { return id < 0; }))
    refuse("with byte_fallback there must be a piece for each byte", "fewer");
}

/// Equal scores have equal ranks, so that the leftmost pair goes first.
void SentencePieceModel::rank_scores() {
  const auto& scores = options().scores;
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  ranks_.resize(scores.size());
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && scores[order[i]] < scores[order[i - 1]]) ++rank;
    ranks_[order[i]] = rank;
  }
}

std::unique_ptr<TextEncoder> SentencePieceModel::encoder(int) const {
  return std::make_unique<SentencePieceEncoder>(*this);
}

/// Id of a piece that merges may make, or -1.
std::int32_t SentencePieceModel::usable(std::string_view piece) const {
  const std::int32_t found = token_ids().find(piece);
  if (found < 0) return -1;
  const Type own = type(found);
  return own == Type::Normal || own == Type::UserDefined || own == Type::Unused ? found : -1;
}

void SentencePieceModel::unigram(std::string_view text, BestWays& ways, std::vector<TokenSpan>& parts) const {
  constexpr float kPenalty = 10;
  const float unknown_score = lowest_ - kPenalty;
  check_mergeable(text);
  ways.start(text.size(), longest_);
  for (std::size_t at = 0, size = 0; at < text.size(); at += size) {
    size = std::min(character_size(text, at), text.size() - at);
    const double so_far = ways.score(at);
    bool is_token = false;
    trie_.for_each_prefix(text.substr(at), [&](std::size_t length, std::int32_t id) {
      const double score = type(id) == Type::UserDefined
                               ? static_cast<double>(static_cast<float>(length) * highest_) - 0.1
                               : static_cast<double>(options().scores[static_cast<std::size_t>(id)]);
      ways.reach(at, at + length, id, score + so_far);
      is_token = is_token || length == size;
    });
    if (!is_token) ways.reach(at, at + size, unknown_, static_cast<double>(unknown_score) + so_far);
  }
  for (auto at = static_cast<std::uint32_t>(text.size()); at > 0; at = ways.last(at).begin)
    parts.push_back({ways.last(at).begin, at, ways.last(at).id});
  std::reverse(parts.begin(), parts.end());
}

void SentencePieceModel::write(std::string_view text, const TokenSpan& part, bool& after_unknown,
                               std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) const {
  const bool is_unknown = part.id == unknown_;
  if (is_unknown && options().byte_fallback) {
    for (std::size_t i = part.begin; i < part.end; ++i) {
      ids.push_back(byte_ids_[static_cast<unsigned char>(text[i])]);
      if (ends != nullptr) ends->push_back(i + 1);
    }
  } else if (is_unknown && after_unknown) {
    if (ends != nullptr) ends->back() = part.end;
  } else {
    ids.push_back(part.id);
    if (ends != nullptr) ends->push_back(part.end);
  }
  after_unknown = is_unknown && !options().byte_fallback;
}

}  // namespace megatron::text
