#include "megatron/data/mock_dataset.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"

namespace megatron::data {
namespace {

constexpr std::int64_t kLongestDocument = 4096;

void count_positions(const Sample& out) {
  std::iota(out.position_ids.begin(), out.position_ids.end(), std::int64_t{0});
  std::ranges::fill(out.first_key, 0);
}

}  // namespace

MockDataset::MockDataset(const MockDatasetSpec& spec) : spec_(spec) {
  if (spec.vocab < 3)
    throw ConfigError(
        rule_got_fix("data.mock_data needs model.vocab_size of at least 3.", concat(spec.vocab), "--vocab-size 1024"));
}

SampleFields MockDataset::fields() const {
  const bool pairs = spec_.kind == MockKind::Pairs;
  return {.loss_mask = spec_.kind != MockKind::Stream,
          .pairs = pairs,
          .decoder_length = spec_.kind == MockKind::EncoderDecoder ? spec_.decoder_seq_length : 0};
}

std::string MockDataset::name_of(std::int64_t i) const { return concat("data.mock_data, sample ", i); }

/// Random number `what` of sample `i`, from 0 to below `below`.
std::int64_t MockDataset::draw(std::int64_t i, std::uint64_t what, std::int64_t below) const {
  return random_word(spec_.key, static_cast<std::uint64_t>(i), what) % std::max<std::int64_t>(1, below);
}

void MockDataset::get(std::int64_t i, const Sample& out) const {
  if (i < 0 || i >= size()) throw std::out_of_range(concat("sample ", i, " of ", size()));
  count_positions(out);
  switch (spec_.kind) {
    case MockKind::Stream:
      return stream(i, out);
    case MockKind::Pairs:
      return pairs(i, out);
    case MockKind::EncoderDecoder:
      return encoder_decoder(i, out);
  }
}

void MockDataset::stream(std::int64_t i, const Sample& out) const {
  check_spans(out, seq_length());
  std::uint64_t drawn = 0;
  std::int64_t length = 1 + draw(i, drawn++, kLongestDocument), place = draw(i, drawn++, length);
  const auto n = static_cast<std::size_t>(seq_length());
  for (std::size_t k = 0; k <= n; ++k) {
    const bool ends = place + 1 == length;
    const std::int64_t token = ends ? spec_.vocab - 1 : counted(place);
    if (k < n && !out.tokens.empty()) out.tokens[k] = token;
    if (k > 0 && !out.labels.empty()) out.labels[k - 1] = token;
    ++place;
    if (!ends) continue;
    length = 1 + draw(i, drawn++, kLongestDocument);
    place = 0;
  }
  std::ranges::fill(out.loss_mask, 1.0f);
}

void MockDataset::pairs(std::int64_t i, const Sample& out) const {
  check_spans(out, seq_length());
  const std::int64_t n = seq_length(), length = n - draw(i, 0, n / 2 + 1), start = draw(i, 1, spec_.vocab);
  const std::int64_t first = spec_.sentence_order ? draw(i, 2, length) : length;  // tokens of the first segment
  const bool swapped = spec_.sentence_order && draw(i, 3, 2) == 1;
  const auto hidden_below = static_cast<std::int64_t>(spec_.mask_probability * 0x1p32);
  for (std::int64_t k = 0; k < n; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const bool in_text = k < length;
    // Swapped, the first segment holds what follows the second.
    const std::int64_t number = !swapped ? k : k < first ? k + length - first : k - first;
    const std::int64_t token = in_text ? counted(start + number) : 0;
    const bool hidden = in_text && draw(i, 4 + static_cast<std::uint64_t>(k), std::int64_t{1} << 32) < hidden_below;
    if (!out.tokens.empty()) out.tokens[at] = hidden ? spec_.vocab - 1 : token;
    if (!out.labels.empty()) out.labels[at] = hidden ? token : 0;
    if (!out.loss_mask.empty()) out.loss_mask[at] = hidden ? 1.0f : 0.0f;
    if (!out.types.empty()) out.types[at] = in_text && k >= first ? 1 : 0;
  }
  if (out.pair != nullptr) *out.pair = {.length = length, .swapped = swapped};
}

void MockDataset::encoder_decoder(std::int64_t i, const Sample& out) const {
  const std::int64_t n = seq_length(), m = spec_.decoder_seq_length, start = draw(i, 0, spec_.vocab);
  const std::int64_t read = n - draw(i, 1, n / 2 + 1), written = m - draw(i, 2, m / 2 + 1);
  for (std::int64_t k = 0; k < n && !out.tokens.empty(); ++k)
    out.tokens[static_cast<std::size_t>(k)] = k < read ? counted(start + k) : 0;
  for (std::int64_t k = 0; k < m; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const std::int64_t label = k + 1 == written ? spec_.vocab - 1 : counted(start + read + k);
    const std::int64_t before = k == 0 ? spec_.vocab - 1 : counted(start + read + k - 1);
    if (!out.decoder_tokens.empty()) out.decoder_tokens[at] = k < written ? before : 0;
    if (!out.labels.empty()) out.labels[at] = k < written ? label : 0;
    if (!out.loss_mask.empty()) out.loss_mask[at] = k < written ? 1.0f : 0.0f;
  }
  if (out.pair != nullptr) *out.pair = {.length = read, .swapped = false};
}

}  // namespace megatron::data
