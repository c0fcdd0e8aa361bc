// The hot loop of encoding. Most pieces are one token of a few bytes that was seen a moment ago: they cost one probe of
// a cache that stays in the L2.
#include <algorithm>
#include <array>

#include "megatron/text/bpe_model.h"
#include "megatron/text/pretokenize.h"
#include "megatron/text/tokenizer.h"

namespace megatron::text {

struct Encoder::State {
  // Half a cache line: a piece of at most 15 bytes and its at most 3 tokens.
  struct alignas(32) CachedPiece {
    PieceKey key;
    std::int32_t count = 0;
    std::array<std::int32_t, 3> ids{};
  };
  State(std::shared_ptr<const BpeModel> shared, int cache_bits)
      : model(std::move(shared)), cache(std::size_t{1} << cache_bits), cache_shift(64 - cache_bits) {}

  void encode_ordinary(std::string_view text, std::vector<std::int32_t>& out);
  void fill(CachedPiece& entry, const PieceKey& key, std::string_view piece);
  void encode_uncached(std::string_view piece, std::vector<std::int32_t>& out);

  std::shared_ptr<const BpeModel> model;
  std::vector<CachedPiece> cache;  // direct-mapped by the key's hash
  int cache_shift;
  MergeScratch scratch;
  std::vector<std::int32_t> merged;
};

void Encoder::State::encode_uncached(std::string_view piece, std::vector<std::int32_t>& out) {
  const std::int32_t id = model->whole_piece(piece);
  if (id >= 0)
    out.push_back(id);
  else
    model->merge_piece(piece, scratch, out);
}

/// Puts the piece in its slot of the cache; a piece of more than three tokens stays in `merged` alone.
void Encoder::State::fill(CachedPiece& entry, const PieceKey& key, std::string_view piece) {
  merged.clear();
  const std::int32_t id = model->whole_piece(key);
  if (id >= 0)
    merged.push_back(id);
  else
    model->merge_piece(piece, scratch, merged);
  if (merged.size() > entry.ids.size()) return;
  entry.key = key;
  entry.count = static_cast<std::int32_t>(merged.size());
  std::copy(merged.begin(), merged.end(), entry.ids.begin());
}

void Encoder::State::encode_ordinary(std::string_view text, std::vector<std::int32_t>& out) {
  const char* const end = text.data() + text.size();
  // Tokens gather here, so that the common case is a store without a test for the vector's capacity.
  std::array<std::int32_t, 1024 + 3> tokens;
  std::size_t count = 0;
  const auto flush = [&] {
    out.insert(out.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
    count = 0;
  };
  for_each_piece(text, [&](const char* p, std::size_t size) {
    if (count > 1024 - 3) flush();
    if (size > PieceKey::kMaxBytes) {
      flush();
      encode_uncached({p, size}, out);
      return;
    }
    const PieceKey key = PieceKey::of(p, size, static_cast<std::size_t>(end - p));
    CachedPiece& entry = cache[key.hash() >> cache_shift];
    if (entry.key != key) [[unlikely]] {
      fill(entry, key, {p, size});
      if (entry.key != key) {
        flush();
        out.insert(out.end(), merged.begin(), merged.end());
        return;
      }
    }
    std::copy_n(entry.ids.begin(), 3, tokens.begin() + static_cast<std::ptrdiff_t>(count));
    count += static_cast<std::size_t>(entry.count);
  });
  flush();
}

Encoder::Encoder(std::shared_ptr<const BpeModel> model, int cache_bits)
    : state_(std::make_unique<State>(std::move(model), cache_bits)) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

void Encoder::encode_append(std::string_view text, std::vector<std::int32_t>& out, Specials specials) {
  std::size_t from = 0;
  if (specials == Specials::Recognised) {
    std::size_t at = 0;
    while (const SpecialToken* special = state_->model->find_special(text, from, at)) {
      state_->encode_ordinary(text.substr(from, at - from), out);
      out.push_back(special->id);
      from = at + special->content.size();
    }
  }
  state_->encode_ordinary(text.substr(from), out);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<std::int32_t> ids;
  Encoder(model_, 8).encode_append(text, ids, specials);
  return ids;
}

}  // namespace megatron::text
