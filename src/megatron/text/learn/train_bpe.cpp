#include "megatron/text/learn/train_bpe.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "megatron/text/characters/byte_level.h"

namespace megatron::text {

Vocabulary train_bpe(const PieceCounter& pieces, const TrainOptions& options, const TrainProgress& progress) {
  options.check(kByteAlphabet);
  Vocabulary vocabulary;
  std::vector<std::string> tokens = options.specials;
  for (std::size_t id = 0; id < tokens.size(); ++id)
    vocabulary.specials.push_back({tokens[id], static_cast<std::int32_t>(id), true});

  std::array<int, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  std::sort(bytes.begin(), bytes.end(), [](int a, int b) {
    return byte_level_code_point(static_cast<unsigned char>(a)) < byte_level_code_point(static_cast<unsigned char>(b));
  });
  std::array<std::int32_t, 256> byte_ids{};
  for (const int byte : bytes) {
    byte_ids[static_cast<std::size_t>(byte)] = static_cast<std::int32_t>(tokens.size());
    tokens.emplace_back(1, static_cast<char>(byte));
  }

  TrainWords words;
  pieces.for_each([&](std::string_view piece, std::uint64_t count) {
    words.lengths.push_back(static_cast<std::uint32_t>(piece.size()));
    words.counts.push_back(static_cast<std::int64_t>(count));
    for (const char c : piece) words.symbols.push_back(byte_ids[static_cast<unsigned char>(c)]);
  });
  LearnedMerges learned = learn_merges(std::move(tokens), std::move(words), options, "", progress);
  vocabulary.tokens = std::move(learned.tokens);
  vocabulary.merges = std::move(learned.merges);
  return vocabulary;
}

}  // namespace megatron::text
