#include <algorithm>

#include "megatron/base/machine/parallel.h"
#include "megatron/text/tokenizer.h"

namespace megatron::text {
namespace {

/// Texts that a thread takes at a time: so many that short ones do not wait for the next turn, and so few that all
/// threads end at about the same time.
std::size_t texts_a_turn(std::size_t texts, std::size_t threads) {
  return std::clamp<std::size_t>(texts / (threads * 8), 1, 64);
}

}  // namespace

std::vector<std::vector<std::int32_t>> Tokenizer::encode_batch(std::span<const std::string_view> texts, int threads,
                                                               Specials specials) const {
  std::vector<std::vector<std::int32_t>> ids(texts.size());
  const std::size_t each = texts_a_turn(texts.size(), static_cast<std::size_t>(std::max(threads, 1)));
  const std::size_t turns = (texts.size() + each - 1) / each;
  std::vector<Encoder> encoders;
  for (int i = 0; i < std::max(threads, 1) && encoders.size() < turns; ++i) encoders.push_back(encoder());
  for_each_on_threads(turns, threads, [&](std::size_t turn, std::size_t worker) {
    const std::size_t end = std::min(texts.size(), (turn + 1) * each);
    for (std::size_t i = turn * each; i < end; ++i) encoders[worker].encode_append(texts[i], ids[i], specials);
  });
  return ids;
}

}  // namespace megatron::text
