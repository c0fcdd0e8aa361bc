// The hot loop of encoding. Most pieces are one token of a few bytes that was seen a moment ago: they cost one probe of
// a cache that stays in the L2.
#include <algorithm>
#include <array>

#include "megatron/text/bert_text.h"
#include "megatron/text/bpe_model.h"
#include "megatron/text/pretokenize.h"
#include "megatron/text/tokenizer.h"

namespace megatron::text {

namespace {

class BpeEncoder : public TextEncoder {
 public:
  BpeEncoder(const BpeModel& model, int cache_bits)
      : model_(model), cache_(std::size_t{1} << cache_bits), cache_shift_(64 - cache_bits) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) override;

 private:
  // Half a cache line: a piece of at most 15 bytes and its at most 3 tokens.
  struct alignas(32) CachedPiece {
    PieceKey key;
    std::int32_t count = 0;
    std::array<std::int32_t, 3> ids{};
  };
  void fill(CachedPiece& entry, const PieceKey& key, std::string_view piece);
  void encode_uncached(std::string_view piece, std::vector<std::int32_t>& out);

  const BpeModel& model_;
  std::vector<CachedPiece> cache_;  // direct-mapped by the key's hash
  int cache_shift_;
  MergeScratch scratch_;
  std::vector<std::int32_t> merged_;
};

void BpeEncoder::encode_uncached(std::string_view piece, std::vector<std::int32_t>& out) {
  const std::int32_t id = model_.whole_piece(piece);
  if (id >= 0)
    out.push_back(id);
  else
    model_.merge_piece(piece, scratch_, out);
}

/// Puts the piece in its slot of the cache; a piece of more than three tokens stays in `merged_` alone.
void BpeEncoder::fill(CachedPiece& entry, const PieceKey& key, std::string_view piece) {
  merged_.clear();
  const std::int32_t id = model_.whole_piece(key);
  if (id >= 0)
    merged_.push_back(id);
  else
    model_.merge_piece(piece, scratch_, merged_);
  if (merged_.size() > entry.ids.size()) return;
  entry.key = key;
  entry.count = static_cast<std::int32_t>(merged_.size());
  std::copy(merged_.begin(), merged_.end(), entry.ids.begin());
}

void BpeEncoder::encode(std::string_view text, std::vector<std::int32_t>& out) {
  const char* const end = text.data() + text.size();
  // Tokens gather here, so that the common case is a store without a test for the vector's capacity.
  std::array<std::int32_t, 1024 + 3> tokens;
  std::size_t count = 0;
  const auto flush = [&] {
    out.insert(out.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
    count = 0;
  };
  for_each_piece(text, model_.vocabulary().split_digits, [&](const char* p, std::size_t size) {
    if (count > 1024 - 3) flush();
    if (size > PieceKey::kMaxBytes) {
      flush();
      encode_uncached({p, size}, out);
      return;
    }
    const PieceKey key = PieceKey::of(p, size, static_cast<std::size_t>(end - p));
    CachedPiece& entry = cache_[key.hash() >> cache_shift_];
    if (entry.key != key) [[unlikely]] {
      fill(entry, key, {p, size});
      if (entry.key != key) {
        flush();
        out.insert(out.end(), merged_.begin(), merged_.end());
        return;
      }
    }
    std::copy_n(entry.ids.begin(), 3, tokens.begin() + static_cast<std::ptrdiff_t>(count));
    count += static_cast<std::size_t>(entry.count);
  });
  flush();
}

}  // namespace

std::unique_ptr<TextEncoder> BpeModel::encoder(int cache_bits) const {
  return std::make_unique<BpeEncoder>(*this, cache_bits);
}

struct Encoder::State {
  std::shared_ptr<const TokenizerModel> model;
  std::unique_ptr<TextEncoder> text;
  std::string normalized;
};

Encoder::Encoder(std::shared_ptr<const TokenizerModel> model, int cache_bits)
    : state_(std::make_unique<State>(model, model->encoder(cache_bits), std::string())) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

void Encoder::encode_append(std::string_view text, std::vector<std::int32_t>& out, Specials specials) {
  using Phase = AddedTokens::Phase;
  const TokenizerModel& model = *state_->model;
  const auto encode = [&](std::string_view part) { state_->text->encode(part, out); };
  const auto push = [&](std::int32_t id) { out.push_back(id); };
  const auto normalized = [&](std::string_view part) {
    if (!model.vocabulary().normalization) return part;
    state_->normalized = bert_normalize(part, *model.vocabulary().normalization);
    return std::string_view(state_->normalized);
  };
  if (specials == Specials::AsText) return encode(normalized(text));
  model.added().split(
      Phase::Raw, text,
      [&](std::string_view part) { model.added().split(Phase::Normalized, normalized(part), encode, push); }, push);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<std::int32_t> ids;
  Encoder(model_, 8).encode_append(text, ids, specials);
  return ids;
}

}  // namespace megatron::text
