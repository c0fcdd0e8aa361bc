// The hot loop of encoding: pieces of text through a cache.
#include "megatron/text/models/bpe_model.h"
#include "megatron/text/models/piece_cache.h"
#include "megatron/text/split/pretokenize.h"
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

  void encode_piece(std::string_view piece, std::vector<std::int32_t>& ids, std::vector<std::size_t>* ends) override {
    const std::size_t before = ids.size();
    model_.encode_piece(piece, scratch_, ids);
    if (ends == nullptr) return;
    std::size_t end = 0;  // lengths, not places, as Hugging Face counts them: a byte that is no token has none
    for (std::size_t i = before; i < ids.size(); ++i)
      ends->push_back(end += model_.vocabulary().tokens[static_cast<std::size_t>(ids[i])].size());
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

}  // namespace megatron::text
