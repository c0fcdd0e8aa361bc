// How a text becomes ids: added tokens out of the raw text, normalizers, added tokens out of what they leave,
// pre-tokenizers, the model.
#include <algorithm>
#include <array>

#include "megatron/base/text/utf8.h"
#include "megatron/text/characters/unicode_classes.h"
#include "megatron/text/files/hugging_face/pipeline_forms.h"
#include "megatron/text/models/piece_cache.h"
#include "megatron/text/models/tokenizer_model.h"
#include "megatron/text/normalize/bert_text.h"
#include "megatron/text/tokenizer.h"

namespace megatron::text {
namespace {

/// The first of 256 code points, none of which is in `text`, that may stand for bytes there.
std::uint32_t choose_stand_ins(std::string_view text) {
  std::array<bool, 512> used{};  // blocks of 256 of the two planes for private use
  for_each_character(text, [&](const DecodedChar& c, std::size_t, std::size_t) {
    if (c.length > 0 && c.code_point >= 0xF0000) used[(c.code_point - 0xF0000) >> 8] = true;
  });
  const auto block = static_cast<std::uint32_t>(std::find(used.begin(), used.end(), false) - used.begin());
  // A text that uses all of them has 2 MB of such characters and bytes that are no text besides: those become U+FFFD.
  return block < used.size() ? 0xF0000 + (block << 8) : 0;
}

/// The bytes that stand-ins in `piece` stand for put back; `ends[i]`: where byte i of the result ends in the piece.
void put_bytes_back(std::string_view piece, std::uint32_t base, std::string& bytes, std::vector<std::size_t>* ends) {
  bytes.clear();
  for_each_character(piece, [&](const DecodedChar& c, std::size_t begin, std::size_t end) {
    if (c.length == 4 && c.code_point - base < 256) {
      bytes.push_back(static_cast<char>(c.code_point - base));
      if (ends != nullptr) ends->push_back(end);
    } else {
      bytes.append(piece, begin, end - begin);
      if (ends != nullptr)
        for (std::size_t at = begin; at < end; ++at) ends->push_back(at + 1);
    }
  });
}

}  // namespace

struct Encoder::State {
  State(std::shared_ptr<const TokenizerModel> shared, int cache_bits)
      : model(std::move(shared)),
        text(model->encoder(cache_bits)),
        cache(model->vocabulary().pipeline ? cache_bits : 0),
        byte_level(is_byte_level(model->vocabulary())),
        has_pre_tokenizers(!model->vocabulary().pipeline || !model->vocabulary().pipeline->pre_tokenizers.empty()) {}

  /// Calls `part(Pieces)`, not yet cut by the last steps, for each normalized part between added tokens, and `token(id,
  /// span)` for those.
  template <class OnPart, class OnToken>
  void run(std::string_view whole, Specials specials, bool aligned, const OnPart& part, const OnToken& token);
  /// Normalizes one part of the text and finds the tokens in it.
  template <class OnPart, class OnToken>
  void run_part(std::string_view raw, std::size_t at, Specials specials, bool aligned, const OnPart& part,
                const OnToken& token);
  void encode_pieces(const Pieces& pieces, std::vector<std::int32_t>& out);
  void encode_pieces(const Pieces& pieces, Encoding& out);
  void count_replaced(std::string_view part);

  std::shared_ptr<const TokenizerModel> model;
  std::unique_ptr<TextEncoder> text;
  PieceCache cache;
  bool byte_level, has_pre_tokenizers;
  Regex::Matcher matcher;  // of the normalizers
  SplitSteps::Matchers matchers;
  std::string normalized, bytes;
  std::uint32_t stand_ins = 0;  // of the text at hand; 0: it has no bytes that are no UTF-8
  std::size_t replaced = 0;
  std::vector<std::size_t> ends, byte_ends;
};

template <class OnPart, class OnToken>
void Encoder::State::run(std::string_view whole, Specials specials, bool aligned, const OnPart& part,
                         const OnToken& token) {
  stand_ins = byte_level && !valid_utf8(whole) ? choose_stand_ins(whole) : 0;
  if (specials == Specials::AsText) return run_part(whole, 0, specials, aligned, part, token);
  const auto place = [&](std::string_view view) { return static_cast<std::size_t>(view.data() - whole.data()); };
  model->added().split(
      AddedTokens::Phase::Raw, whole,
      [&](std::string_view raw) { run_part(raw, place(raw), specials, aligned, part, token); },
      [&](std::int32_t id, std::string_view found) {
        token(id, ByteSpan{place(found), place(found) + found.size()});
      });
}

template <class OnPart, class OnToken>
void Encoder::State::run_part(std::string_view raw, std::size_t at, Specials specials, bool aligned, const OnPart& part,
                              const OnToken& token) {
  std::size_t count = 0;
  AlignedText part_text(raw, at, aligned || model->pre_tokenizers().needs_alignment(), stand_ins, count);
  if (!byte_level) replaced += count;
  model->normalizers().apply(part_text, matcher);
  const auto give = [&](AlignedText&& some) {
    if (some.bytes().empty()) return;
    part(model->pre_tokenizers().begin(std::move(some), matchers));
  };
  if (specials == Specials::AsText || !model->added().any(AddedTokens::Phase::Normalized))
    return give(std::move(part_text));
  const std::string_view all = part_text.bytes();
  const auto place = [&](std::string_view view) { return static_cast<std::size_t>(view.data() - all.data()); };
  model->added().split(
      AddedTokens::Phase::Normalized, all,
      [&](std::string_view some) { give(part_text.part(place(some), place(some) + some.size())); },
      [&](std::int32_t id, std::string_view found) {
        const std::size_t begin = place(found);
        token(id, part_text.aligned() ? part_text.origin_of(begin, begin + found.size()) : ByteSpan());
      });
}

void Encoder::State::encode_pieces(const Pieces& pieces, std::vector<std::int32_t>& out) {
  const std::string_view all = pieces.text.bytes();
  const auto encode_one = [&](std::string_view piece, std::vector<std::int32_t>& ids) {
    if (stand_ins == 0) return text->encode_piece(piece, ids, nullptr);
    put_bytes_back(piece, stand_ins, bytes, nullptr);
    text->encode_piece(bytes, ids, nullptr);
  };
  if (stand_ins != 0 || !has_pre_tokenizers) {
    return model->pre_tokenizers().finish(pieces, matchers, [&](const ByteSpan& span) {
      encode_one(all.substr(span.begin, span.end - span.begin), out);
    });
  }
  cache.encode(
      all.data() + all.size(),
      [&](const auto& piece) {
        model->pre_tokenizers().finish(
            pieces, matchers, [&](const ByteSpan& span) { piece(all.data() + span.begin, span.end - span.begin); });
      },
      encode_one, out);
}

void Encoder::State::encode_pieces(const Pieces& pieces, Encoding& out) {
  const std::string_view all = pieces.text.bytes();
  model->pre_tokenizers().finish(pieces, matchers, [&](const ByteSpan& span) {
    const std::string_view piece = all.substr(span.begin, span.end - span.begin);
    ends.clear();
    byte_ends.clear();
    if (stand_ins == 0) {
      text->encode_piece(piece, out.ids, &ends);
    } else {
      put_bytes_back(piece, stand_ins, bytes, &byte_ends);
      text->encode_piece(bytes, out.ids, &ends);
      for (std::size_t& end : ends) end = end == 0 ? 0 : byte_ends[end - 1];
    }
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      // Bytes of an unknown run all have its end; they begin where it does.
      out.bytes.push_back(pieces.text.origin_of(span.begin + std::min(begin, end), span.begin + end));
      begin = end;
    }
  });
}

Encoder::Encoder(std::shared_ptr<const TokenizerModel> model, int cache_bits)
    : state_(std::make_unique<State>(std::move(model), cache_bits)) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

void Encoder::State::count_replaced(std::string_view part) {
  if (byte_level || valid_utf8(part)) return;
  for_each_character(part, [&](const DecodedChar& c, std::size_t, std::size_t) { replaced += c.length == 0; });
}

std::size_t Encoder::replaced() const { return state_->replaced; }

namespace {

/// Number of characters before each byte of `text`, and before its end.
std::vector<std::size_t> character_counts(std::string_view text) {
  std::vector<std::size_t> counts(text.size() + 1);
  std::size_t count = 0;
  for_each_character(text, [&](const DecodedChar&, std::size_t begin, std::size_t end) {
    // An offset within a character, which only a byte of it has, is that of its beginning.
    for (std::size_t at = begin; at < end; ++at) counts[at] = count;
    ++count;
  });
  counts[text.size()] = count;
  return counts;
}

/// Takes away the spaces that a token has at its ends, counted in the token.
/// `is_added`: it is no token of the model, whose white space but U+0020 is spelled otherwise.
void trim(std::string_view token, bool is_added, bool is_first, bool add_prefix_space, ByteSpan& span) {
  const auto blanks = [&](std::string_view text, bool backwards) {
    const auto is_blank = [&](char c) { return c == ' ' || (is_added && c >= '\t' && c <= '\r'); };
    std::size_t count = 0;
    while (count < text.size() && is_blank(text[backwards ? text.size() - 1 - count : count])) ++count;
    return count;
  };
  std::size_t leading = blanks(token, false);
  const std::size_t trailing = blanks(token, true);
  if (leading > 0 && is_first && add_prefix_space) leading = 0;
  span.begin = std::min(span.begin + leading, span.end);
  if (span.end >= trailing) span.end = std::max(span.end - trailing, span.begin);
}

}  // namespace

Encoding Encoder::encode_with_offsets(std::string_view text, Specials specials) {
  Encoding out;
  const Vocabulary& vocabulary = state_->model->vocabulary();
  std::vector<std::size_t> added;  // places in `out`
  state_->run(
      text, specials, true, [&](const Pieces& pieces) { state_->encode_pieces(pieces, out); },
      [&](std::int32_t id, const ByteSpan& span) {
        added.push_back(out.ids.size());
        out.ids.push_back(id);
        out.bytes.push_back(span);
      });
  const std::vector<std::size_t> counts = character_counts(text);
  for (const ByteSpan& span : out.bytes) out.characters.push_back({counts[span.begin], counts[span.end]});
  if (!vocabulary.trim_offsets) return out;
  for (std::size_t i = 0; i < out.ids.size(); ++i) {
    const bool is_added = std::binary_search(added.begin(), added.end(), i);
    const std::string_view token =
        is_added ? text.substr(out.bytes[i].begin, out.bytes[i].end - out.bytes[i].begin)  // with the spaces it took
                 : std::string_view(vocabulary.tokens[static_cast<std::size_t>(out.ids[i])]);
    const bool is_first = i == 0 || out.bytes[i].begin == 0;
    trim(token, is_added, is_first, vocabulary.trim_offsets->add_prefix_space, out.bytes[i]);
    trim(token, is_added, is_first, vocabulary.trim_offsets->add_prefix_space, out.characters[i]);
  }
  return out;
}

void Encoder::encode_append(std::string_view text, std::vector<std::int32_t>& out, Specials specials) {
  const TokenizerModel& model = *state_->model;
  const auto push = [&](std::int32_t id, const auto&) { out.push_back(id); };
  if (model.vocabulary().pipeline)
    return state_->run(
        text, specials, false, [&](const Pieces& pieces) { state_->encode_pieces(pieces, out); }, push);
  const auto encode = [&](std::string_view part) { state_->text->encode(part, out); };
  const auto normalized = [&](std::string_view part) {
    if (!model.vocabulary().normalization) return part;
    state_->count_replaced(part);
    state_->normalized = bert_normalize(part, *model.vocabulary().normalization);
    return std::string_view(state_->normalized);
  };
  if (specials == Specials::AsText) return encode(normalized(text));
  model.added().split(
      AddedTokens::Phase::Raw, text,
      [&](std::string_view part) {
        model.added().split(AddedTokens::Phase::Normalized, normalized(part), encode, push);
      },
      push);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<std::int32_t> ids;
  Encoder(model_, 8).encode_append(text, ids, specials);
  return ids;
}

}  // namespace megatron::text
