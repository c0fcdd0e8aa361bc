#include "megatron/data/index/gpt_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/data/index/index_room.h"
#include "megatron/data/index/numpy_random.h"
#include "megatron/data/index/split.h"

namespace megatron::data {
namespace {

constexpr std::int64_t kMegatronsBound = (std::int64_t{1} << 32) - 2;  // of samples; above, numpy's uint32 is too small

template <class T>
void fill_document_index(const SequenceRange& range, const GptIndexPlan& plan, NumpyRandom& random, std::span<T> out) {
  const auto per_epoch = static_cast<std::size_t>(range.size());
  for (std::size_t i = 0; i < out.size(); i += per_epoch)
    std::iota(out.begin() + static_cast<std::ptrdiff_t>(i), out.begin() + static_cast<std::ptrdiff_t>(i + per_epoch),
              static_cast<T>(range.first));
  const std::size_t apart = plan.separate_last_epoch ? out.size() - per_epoch : out.size();
  random.shuffle(out.first(apart));
  random.shuffle(out.subspan(apart));
}

template <class T>
void fill_shuffle_index(const GptIndexPlan& plan, NumpyRandom& random, std::span<T> out) {
  std::iota(out.begin(), out.end(), T{0});
  const auto apart = static_cast<std::size_t>(plan.separate_last_epoch ? plan.samples_before_last : plan.samples);
  random.shuffle(out.first(apart));
  random.shuffle(out.subspan(apart));
}

std::int32_t length_in(std::span<const std::byte> lengths, std::int64_t sequence) {
  std::int32_t length;
  std::memcpy(&length, lengths.data() + 4 * sequence, sizeof length);
  return length;
}

// Sample k >= 1 begins where token k * seq of the stream stands (without the extra token: behind token k * seq - 1, so
// that a sample which ends with its sequence is followed by the end of that one and not by the next one's begin).
template <class T>
void fill_samples(const GptIndexSpec& spec, const GptIndexPlan& plan, std::span<const std::int32_t> documents,
                  std::span<const std::byte> lengths, std::span<T> out) {
  constexpr std::size_t kAhead = 32;  // lengths are read in no order: asked of memory so long before they are used
  const std::int64_t behind = spec.extra_token ? 0 : 1, samples = plan.samples;
  T* const pairs = out.data();
  pairs[0] = pairs[1] = 0;
  std::int64_t begin = 0, sample = 1, next = spec.seq_length - behind;  // begin of the sequence; where `sample` begins
  for (std::size_t at = 0; at < documents.size() && sample <= samples; ++at) {
    if (at + kAhead < documents.size())
      __builtin_prefetch(lengths.data() + 4 * static_cast<std::int64_t>(documents[at + kAhead]));
    const std::int64_t end = begin + length_in(lengths, documents[at]);
    for (; next < end && sample <= samples; ++sample, next += spec.seq_length) {
      pairs[2 * sample] = static_cast<T>(at);
      pairs[2 * sample + 1] = static_cast<T>(next + behind - begin);
    }
    begin = end;
  }
  if (sample > samples) return;
  pairs[2 * sample] = static_cast<T>(documents.size() - 1);  // the partial sample ends with the stream
  pairs[2 * sample + 1] = static_cast<T>(length_in(lengths, documents.back()) - (1 - behind));
}

/// Calls `use` with a null pointer to the type that holds values up to `top`.
template <class Use>
void with_index_type(std::int64_t top, NpyType& type, Use use) {
  if (top <= std::numeric_limits<std::int32_t>::max()) {
    type = NpyType::I32;
    use(std::int32_t{});
  } else {
    type = NpyType::I64;
    use(std::int64_t{});
  }
}

/// Throws ConfigError where the folder's file system has less room than the three files will take.
void check_plan_fits(const GptIndexFiles& files, std::int64_t positions, const GptIndexPlan& plan) {
  const auto documents = static_cast<double>(positions), samples = static_cast<double>(plan.samples);
  const double sample_item = positions <= std::numeric_limits<std::int32_t>::max() ? 4 : 8;
  check_room(files.document_index, concat(plan.samples, " samples in ", plan.epochs, " passes"),
             4 * documents + samples * (2 * sample_item + (plan.samples < kMegatronsBound ? 4 : 8)));
}

}  // namespace

const char* split_part_name(SplitPart part) {
  switch (part) {
    case SplitPart::Train:
      return "train";
    case SplitPart::Valid:
      return "valid";
    case SplitPart::Test:
      return "test";
  }
  throw std::logic_error("unknown SplitPart");
}

std::array<SequenceRange, 3> split_ranges(const std::string& split, std::int64_t sequences) {
  const std::array<double, 3> shares = split_shares(split);
  std::array<SequenceRange, 3> ranges;
  double begin = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double end = begin + shares[i];
    const auto bound = [&](double share) {  // nearbyint rounds half to even, as Python's round
      return std::min(sequences, static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(sequences))));
    };
    if (end > begin) ranges[i] = {bound(begin), bound(end)};
    begin = end;
  }
  return ranges;
}

void check_split(SplitPart part, const std::string& split, const SequenceRange& range, const GptIndexSpec& spec,
                 const IndexedDataset& data) {
  if (range.size() > 0 || spec.num_samples.value_or(0) == 0) return;
  throw EmptyPart(
      rule_got_fix("a split that samples are asked of must have sequences.",
                   concat("the ", split_part_name(part), " part of ", split, " over ", data.size(), " sequences of ",
                          data.prefix(), " is empty; ", *spec.num_samples, " samples asked"),
                   "give the part a larger share, ask no samples of it, or use more documents"));
}

GptIndexPlan plan_gpt_index(const GptIndexSpec& spec, std::int64_t tokens_per_epoch) {
  const std::int64_t seq = spec.seq_length, extra = spec.extra_token ? 1 : 0;
  if (seq < 1 || seq > kMaxSample)
    throw ConfigError(
        rule_got_fix(concat("the sequence length must be 1 to ", kMaxSample, "."), concat(seq), "--seq-length 1024"));
  if (spec.seed > std::numeric_limits<std::uint32_t>::max())
    throw ConfigError(
        rule_got_fix("the seed of the sample order must be below 2^32.", concat(spec.seed), "--seed 1234"));
  const std::int64_t wanted = spec.num_samples.value_or(0);
  if (wanted < 0)
    throw ConfigError(rule_got_fix("the number of samples cannot be negative.", concat(wanted), "0 or more"));
  GptIndexPlan plan{.tokens_per_epoch = tokens_per_epoch};
  if (tokens_per_epoch == 0) {
    if (wanted > 0)
      throw EmptyPart(rule_got_fix("a split that samples are asked of must have tokens.",
                                   concat(wanted, " samples of no tokens"),
                                   "a larger share of the documents for it (--split), or more text"));
    return plan;
  }
  std::int64_t needed = 0;
  if (__builtin_mul_overflow(wanted, seq, &needed) ||
      needed > std::numeric_limits<std::int64_t>::max() / 2 - tokens_per_epoch)
    throw ConfigError(rule_got_fix("samples x sequence length must be below 2^62 tokens.", concat(wanted, " x ", seq),
                                   "fewer samples: --train-iters"));
  plan.epochs = std::max<std::int64_t>(1, (needed + extra + tokens_per_epoch - 1) / tokens_per_epoch);
  const std::int64_t stream = std::max<std::int64_t>(0, plan.epochs * tokens_per_epoch - extra);
  plan.samples = spec.keep_partial ? (stream + seq - 1) / seq : stream / seq;
  if (plan.epochs > 1) {
    plan.samples_before_last = ((plan.epochs - 1) * tokens_per_epoch - extra) / seq;
    const std::int64_t of_last = wanted - plan.samples_before_last, per_epoch = (tokens_per_epoch - extra) / seq;
    plan.separate_last_epoch = of_last < static_cast<std::int64_t>(0.80 * static_cast<double>(per_epoch));
  }
  return plan;
}

void fill_sample_index(const GptIndexSpec& spec, const GptIndexPlan& plan, std::span<const std::int32_t> documents,
                       std::span<const std::byte> lengths, std::span<std::int32_t> out) {
  fill_samples(spec, plan, documents, lengths, out);
}

void fill_sample_index(const GptIndexSpec& spec, const GptIndexPlan& plan, std::span<const std::int32_t> documents,
                       std::span<const std::byte> lengths, std::span<std::int64_t> out) {
  fill_samples(spec, plan, documents, lengths, out);
}

std::int64_t tokens_of(const IndexedDataset& data, const SequenceRange& range) {
  const auto lengths = data.length_bytes();
  std::int64_t tokens = 0;
  std::int32_t signs = 0;
  for (std::int64_t i = range.first; i < range.last; ++i) {
    const std::int32_t length = length_in(lengths, i);
    tokens += length;
    signs |= length;
  }
  if (signs < 0)
    for (std::int64_t i = range.first; i < range.last; ++i) data.length(i);  // throws for the first that is negative
  return tokens;
}

GptIndex::GptIndex(const GptIndexFiles& files)
    : document(files.document_index), sample(files.sample_index), shuffle(files.shuffle_index) {
  if (document.shape().size() != 1 || shuffle.shape().size() != 1 || sample.shape().size() != 2 ||
      sample.shape()[1] != 2 || sample.shape()[0] != shuffle.size() + 1)
    throw ConfigError(rule_got_fix(
        concat(files.sample_index, ": must have two columns and one row more than there are samples."),
        concat(sample.size(), " numbers for ", shuffle.size(), " samples"), "remove the files; they are built again"));
}

void check_sequences(const SequenceRange& range) {
  if (range.last > std::numeric_limits<std::int32_t>::max())
    throw ConfigError(rule_got_fix("a dataset may have at most 2^31 - 1 sequences.", concat(range.last),
                                   "split it into several pairs"));
}

GptIndexPlan build_gpt_index(const IndexedDataset& data, const SequenceRange& range, const GptIndexSpec& spec,
                             const GptIndexFiles& files) {
  const GptIndexPlan plan = plan_gpt_index(spec, tokens_of(data, range));
  std::int64_t positions = 0;
  if (__builtin_mul_overflow(range.size(), plan.epochs, &positions) || positions > std::int64_t{1} << 48)
    throw ConfigError(rule_got_fix("the samples asked for must not repeat the split so often.",
                                   concat(plan.epochs, " passes over ", range.size(), " sequences"),
                                   "fewer samples (--train-iters), or more text"));
  NumpyRandom random(static_cast<std::uint32_t>(spec.seed));
  NpyType type = NpyType::I32;

  check_sequences(range);
  check_plan_fits(files, positions, plan);
  NpyWriter document_index(files.document_index, NpyType::I32, {positions});
  const auto documents = document_index.values<std::int32_t>();
  if (positions > 0) fill_document_index(range, plan, random, documents);
  with_index_type(positions, type, [&](auto zero) {
    NpyWriter sample_index(files.sample_index, type, {plan.samples + 1, 2});
    fill_samples<decltype(zero)>(spec, plan, documents, data.length_bytes(), sample_index.values<decltype(zero)>());
    sample_index.publish();
  });
  document_index.publish();

  const NpyType shuffle_type = plan.samples < kMegatronsBound ? NpyType::U32 : NpyType::I64;
  NpyWriter shuffle_index(files.shuffle_index, shuffle_type, {plan.samples});
  if (shuffle_type == NpyType::U32)
    fill_shuffle_index(plan, random, shuffle_index.values<std::uint32_t>());
  else
    fill_shuffle_index(plan, random, shuffle_index.values<std::int64_t>());
  shuffle_index.publish();
  return plan;
}

}  // namespace megatron::data
