#include "megatron/data/part_dataset.h"

#include <filesystem>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/philox.h"
#include "megatron/data/index/split.h"
#include "megatron/data/samples/blended_dataset.h"
#include "megatron/data/samples/chats/preferences.h"
#include "megatron/data/samples/chats/sft.h"
#include "megatron/data/samples/packed_dataset.h"

namespace megatron::data {
namespace {

/// Each prefix of the run's blends draws numbers of its own, wherever its folder is.
std::uint64_t fill_in_middle_key(const PartSpec& spec, std::size_t i) {
  return stream_key(spec.index.seed, concat("fill-in-the-middle/", split_part_name(spec.part), "/", spec.place + i));
}

/// The pair that a prefix of the blend stands for: itself, or the conversations' in the cache.
std::string pair_of(const PartSpec& spec, const std::string& prefix, const WaitMessage& say) {
  if (spec.preferences) return build_preference_pair(prefix, spec.tokenizer.value(), spec.chat, spec.cache_folder, say);
  return spec.chat ? build_chat_pair(prefix, spec.tokenizer.value(), *spec.chat, spec.cache_folder, say) : prefix;
}

GptDatasetSpec set_spec(const PartSpec& spec, const std::string& prefix, std::optional<std::int64_t> samples) {
  GptDatasetSpec set{
      .prefix = prefix, .split = spec.split, .part = spec.part, .index = spec.index, .cache_folder = spec.cache_folder};
  set.index.num_samples = samples;
  return set;
}

/// Where samples of sentences come from.
SentenceSource sentence_source(const PartSpec& spec, const std::string& prefix, std::optional<std::int64_t> samples) {
  return {.prefix = prefix,
          .split = spec.split,
          .part = spec.part,
          .short_probability = spec.masked->short_probability,
          .seed = spec.index.seed,
          .num_samples = samples,
          .cache_folder = spec.cache_folder};
}

/// Prefix number `i` of the blend.
std::unique_ptr<const Dataset> open_set(const PartSpec& spec, std::size_t i, std::optional<std::int64_t> samples,
                                        const WaitMessage& say) {
  if (spec.masked)
    return spec.masked->open(sentence_source(spec, spec.blend.prefixes[i], samples), spec.index.seq_length,
                             spec.tokenizer.value(), say);
  const GptDatasetSpec set = set_spec(spec, pair_of(spec, spec.blend.prefixes[i], say), samples);
  if (spec.preferences) return std::make_unique<PreferenceDataset>(set);
  if (spec.chat || spec.packed)
    return std::make_unique<PackedDataset>(set, spec.packed ? Packing::BestFit : Packing::Alone, say);
  GptSampleOptions options = spec.options;
  if (spec.fill_in_middle) {
    options.transform = FillInMiddle(*spec.fill_in_middle, spec.tokenizer.value(), fill_in_middle_key(spec, i));
    options.pad = spec.fill_in_middle->pad;
  }
  GptDataset::build(set, say);
  return std::make_unique<GptDataset>(set, options);
}

/// What Megatron-Core asks of each set of the blend, and how many samples the blend has; nothing: all of the sets.
BlendPlan plan_part(const PartSpec& spec) {
  if (!spec.blend.weights)
    return {.size = 0, .requests = std::vector<std::optional<std::int64_t>>(spec.blend.prefixes.size())};
  if (!spec.index.num_samples)
    throw ConfigError(rule_got_fix("a blend with weights needs a number of samples.",
                                   "data.full_validation, which takes all there are",
                                   "give the validation data without weights, or data.multiple_validation_sets"));
  return plan_weighted_blend(normalize_weights(*spec.blend.weights), *spec.index.num_samples);
}

/// Throws the ConfigErrors of a pair that samples of sentences are to be made of.
void check_sentences(const SentenceSource& source, const SentenceBounds& bounds, const IndexedDataset& pair) {
  check_sentence_index({.max_tokens = bounds.max_tokens,
                        .min_sentences = bounds.min_sentences,
                        .short_probability = source.short_probability,
                        .seed = source.seed,
                        .num_samples = source.num_samples});
  const DocumentRange range = split_documents(source.split, source.part, pair);
  std::int64_t most = 0;
  for (std::int64_t d = range.first; d < range.last && most < bounds.min_sentences; ++d)
    most = std::max(most, pair.first_sequence(d + 1) - pair.first_sequence(d));
  if (most < bounds.min_sentences)
    throw EmptyPart(rule_got_fix(
        concat(pair.prefix(), ": the part for ", split_part_name(source.part), " (data.split) must have documents of ",
               bounds.min_sentences, " or more sentences."),
        concat(range.last - range.first, " documents, of at most ", most),
        "make the pair with megatron data preprocess --split-sentences, or share its documents out otherwise"));
  check_sentence_range(pair, range,
                       {.min_sentences = bounds.min_sentences, .num_samples = source.num_samples.value_or(1)});
}

/// check_sentences() of prefix `i` of a blend; the pair.
IndexedDataset check_sentence_set(const PartSpec& spec, std::size_t i, std::optional<std::int64_t> samples) {
  const std::string& prefix = spec.blend.prefixes[i];
  IndexedDataset pair(prefix);
  spec.masked->check(spec.tokenizer.value());
  check_sentences(sentence_source(spec, prefix, samples), spec.masked->bounds(spec.index.seq_length), pair);
  return pair;
}

MockDatasetSpec mock_spec(const PartSpec& spec) {
  MockDatasetSpec mock = spec.mock;
  mock.seq_length = spec.index.seq_length;
  mock.num_samples = std::max<std::int64_t>(1, spec.index.num_samples.value_or(1));
  mock.key = stream_key(spec.index.seed, concat("mock data/", split_part_name(spec.part)));
  return mock;
}

bool is_plain(const PartSpec& spec) { return spec.blend.prefixes.size() == 1 && !spec.blend.weights; }

/// Whether one pass over the sequences gives a sample.
bool holds_sample(const PartSpec& spec, const IndexedDataset& pair, const SequenceRange& range, std::int64_t tokens) {
  if (!spec.chat && !spec.packed) {
    GptIndexSpec one_pass = spec.index;
    one_pass.num_samples.reset();
    return plan_gpt_index(one_pass, tokens).samples > 0;
  }
  for (std::int64_t i = range.first; i < range.last; ++i)
    if (pair.length(i) > 1) return true;
  return false;
}

/// Sets that are taken whole, and what there is to say of those that are too short for a sample.
struct WholeSets {
  std::size_t sets = 0;
  std::vector<std::string> too_short;
};

/// Throws ConfigError where sets that are taken whole have no sample between them; warns of each that has none.
void check_whole_sets(const PartSpec& spec, const WholeSets& whole, const WaitMessage& say) {
  if (whole.too_short.empty() || spec.index.num_samples.value_or(1) == 0) return;
  if (whole.too_short.size() < whole.sets) {
    for (const std::string& set : whole.too_short)
      if (say) say(concat("warning: ", set, ", too few for a sample: nothing of it is read"));
    return;
  }
  std::string got;
  for (const std::string& set : whole.too_short) got += (got.empty() ? "" : "; ") + set;
  const bool full = !spec.index.num_samples;
  const std::string less = spec.chat || spec.packed ? "" : " or a smaller --seq-length,";
  throw EmptyPart(rule_got_fix(
      concat("The ", split_part_name(spec.part), " data, which is read once (",
             full ? "data.full_validation" : "a blend without weights", "), must hold a sample",
             less.empty() ? ": a document of two tokens." : concat(" of data.seq_length ", spec.index.seq_length, ".")),
      got,
      concat(
          "more text for it,", less, " or ",
          full ? "leave --full-validation out" : "a weight before each prefix, with which data is repeated: 1 A 1 B")));
}

}  // namespace

std::unique_ptr<const Dataset> open_part(const PartSpec& spec, const WaitMessage& say) {
  if (spec.mock.vocab > 0) return std::make_unique<MockDataset>(mock_spec(spec));
  if (is_plain(spec)) return open_set(spec, 0, spec.index.num_samples, say);
  const BlendPlan plan = plan_part(spec);
  std::vector<std::unique_ptr<const Dataset>> sets;
  for (std::size_t i = 0; i < plan.requests.size(); ++i) sets.push_back(open_set(spec, i, plan.requests[i], say));
  BlendedDataset::Spec blend{.cache_folder = spec.cache_folder, .name = split_part_name(spec.part)};
  if (spec.cache_folder.empty())
    blend.cache_folder =
        std::filesystem::path(spec.blend.prefixes[0]).parent_path() / "cache" / "BlendedDataset_indices";
  if (spec.blend.weights) {
    blend.weights = normalize_weights(*spec.blend.weights);
    blend.size = plan.size;
  } else {
    std::int64_t all = 0;
    for (const auto& set : sets) {
      blend.weights.push_back(static_cast<double>(set->size()));
      all += set->size();
    }
    if (spec.index.num_samples) blend.size = std::min(*spec.index.num_samples, all);
  }
  return std::make_unique<BlendedDataset>(std::move(sets), blend, say);
}

void check_part(const PartSpec& spec, const std::function<void(const IndexedDataset&)>& look_at,
                const WaitMessage& say) {
  if (spec.mock.vocab > 0) return static_cast<void>(MockDataset(mock_spec(spec)));
  const std::vector<std::optional<std::int64_t>> requests =
      is_plain(spec) ? std::vector{spec.index.num_samples} : plan_part(spec).requests;
  WholeSets whole;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (spec.masked) {
      look_at(check_sentence_set(spec, i, requests[i]));
      continue;
    }
    const GptDatasetSpec set = set_spec(spec, pair_of(spec, spec.blend.prefixes[i], say), requests[i]);
    const IndexedDataset pair(set.prefix);
    if (spec.preferences) {
      check_preferences(spec.blend.prefixes[i], set, say);
      look_at(pair);
      continue;
    }
    const SequenceRange range = split_ranges(set.split, pair.size())[static_cast<std::size_t>(set.part)];
    GptIndexSpec index = set.index;
    if (!index.num_samples) index.num_samples = 1;  // a set that is taken whole must hold something
    check_split(set.part, set.split, range, index, pair);
    const std::int64_t tokens = tokens_of(pair, range);
    plan_gpt_index(index, tokens);
    if (!requests[i]) {
      ++whole.sets;
      if (!holds_sample(spec, pair, range, tokens))
        whole.too_short.push_back(concat(spec.blend.prefixes[i], " has ", tokens, tokens == 1 ? " token" : " tokens"));
    }
    if (spec.chat)
      check_learned(spec.blend.prefixes[i], pair, range, set.index.seq_length,
                    spec.packed ? Packing::BestFit : Packing::Alone, say);
    look_at(pair);
  }
  check_whole_sets(spec, whole, say);
}

bool holds_samples(const PartSpec& spec) {
  try {
    check_part(spec, [](const IndexedDataset&) {});
    return true;
  } catch (const EmptyPart&) {
    return false;
  }
}

FillInMiddleOptions fill_in_middle_options(const config::FimConfig& fim, const text::Tokenizer& tokenizer) {
  const auto id_of = [&](const char* option, const std::string& token) {
    const auto id = tokenizer.token_to_id(token);
    if (!id)
      throw ConfigError(rule_got_fix(concat("fim.", option, " must be a token of data.tokenizer."), "\"" + token + "\"",
                                     "add the token when the tokenizer is trained, or name one that it has"));
    return *id;
  };
  return {.rate = fim.rate,
          .spm_rate = fim.spm_rate,
          .fragment_rate = fim.fragment_rate,
          .prefix = id_of("prefix_token", fim.prefix_token),
          .middle = id_of("middle_token", fim.middle_token),
          .suffix = id_of("suffix_token", fim.suffix_token),
          .pad = id_of("pad_token", fim.pad_token),
          .eod = id_of("eod_token", fim.eod_token),
          .split = fim.split_sample.empty() ? -1 : id_of("split_sample", fim.split_sample),
          .no_prefix = fim.no_prefix};
}

}  // namespace megatron::data
