// The hot loop of encoding: pieces of text through a cache.
#include "megatron/text/bert_text.h"
#include "megatron/text/bpe_model.h"
#include "megatron/text/piece_cache.h"
#include "megatron/text/pretokenize.h"
#include "megatron/text/tokenizer.h"

namespace megatron::text {

namespace {

class BpeEncoder : public TextEncoder {
 public:
  BpeEncoder(const BpeModel& model, int cache_bits) : model_(model), cache_(cache_bits) {}

  void encode(std::string_view text, std::vector<std::int32_t>& out) override {
    const bool split_digits = model_.vocabulary().split_digits;
    cache_.encode(
        text.data() + text.size(), [&](const auto& piece) { for_each_piece(text, split_digits, piece); },
        [&](std::string_view piece, std::vector<std::int32_t>& ids) { model_.encode_piece(piece, scratch_, ids); },
        out);
  }

 private:
  const BpeModel& model_;
  PieceCache cache_;
  MergeScratch scratch_;
};

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
