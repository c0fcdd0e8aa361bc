#include "megatron/data/samples/chats/preferences.h"
#include "megatron/data/samples/chats/cached_pair.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/data/files/json_line.h"
#include "megatron/data/index/numpy_random.h"
#include "megatron/data/index/split.h"
#include "megatron/data/samples/chats/sft.h"

namespace megatron::data {
namespace {

constexpr int kPreferencesVersion = 1;  // raised when the same file begins to mean other tokens

using Messages = std::vector<text::ChatMessage>;

/// A line's prompt or one of its answers: a string, or messages.
struct Turns {
  std::optional<std::string> plain;
  Messages messages;
};

/// Throws ConfigError with what is wrong, without its place.
class PreferenceParser {
 public:
  struct Preference {
    Turns prompt, chosen, rejected;
  };
  /// `line` is followed by simdjson::SIMDJSON_PADDING bytes that may be read.
  Preference parse(std::string_view line) {
    simdjson::dom::element root;
    if (const auto error = parse_json_line(parser_, line, root)) fail(simdjson::error_message(error));
    Preference preference{turns(root, "prompt"), turns(root, "chosen"), turns(root, "rejected")};
    const auto is_plain = [](const Turns& all) { return all.plain.has_value(); };
    if (is_plain(preference.prompt) != is_plain(preference.chosen) ||
        is_plain(preference.prompt) != is_plain(preference.rejected))
      fail("strings and messages together");
    return preference;
  }

 private:
  [[noreturn]] static void fail(const std::string& got) {
    throw ConfigError(
        rule_got_fix("a preference is {\"prompt\": P, \"chosen\": C, \"rejected\": R}, all three strings "
                     "or all three lists of {\"role\": …, \"content\": …}.",
                     got, "one such object per line"));
  }
  static std::string text_of(simdjson::dom::element message, const char* name) {
    const auto text = last_member(message, name);
    if (!text || !text->is_string()) fail(concat("a message without a text ", name));
    return std::string(text->get_string().value_unsafe());
  }
  static Turns turns(simdjson::dom::element root, const char* name) {
    const auto value = last_member(root, name);
    std::string_view plain;
    simdjson::dom::array array;
    if (!value) fail(concat("no ", name));
    if (value->get(plain) == simdjson::SUCCESS) return {std::string(plain), {}};
    if (value->get(array) != simdjson::SUCCESS) fail(concat(name, " of another type"));
    Turns read;
    for (const simdjson::dom::element message : array)
      read.messages.push_back({text_of(message, "role"), text_of(message, "content")});
    if (read.messages.empty()) fail(concat(name, " without messages"));
    return read;
  }

  simdjson::dom::parser parser_;
};

/// Prompt and answer as tokens, those of the answer as they are and the others as ~id.
class PreferenceEncoder {
 public:
  PreferenceEncoder(const text::Tokenizer& tokenizer, const std::optional<text::ChatTemplate>& chat_template)
      : tokenizer_(tokenizer), chat_template_(chat_template), encoder_(tokenizer.encoder()) {}

  std::vector<std::int32_t> encode(const Turns& prompt, const Turns& answer) {
    if (prompt.plain) {
      text::RenderedChat chat{.text = *prompt.plain + *answer.plain, .answers = {}};
      chat.answers.push_back({prompt.plain->size(), chat.text.size()});
      std::vector<std::int32_t> tokens = encode_chat(chat, encoder_);
      tokens.push_back(static_cast<std::int32_t>(tokenizer_.eod_id()));
      return tokens;
    }
    if (!chat_template_)
      throw ConfigError(
          rule_got_fix("messages need a chat template in the tokenizer's folder.",
                       "none that can be read: chat_template.jinja, or chat_template in tokenizer_config.json",
                       "strings for prompt, chosen and rejected; or --tokenizer of a chat model"));
    Messages all = prompt.messages;
    all.insert(all.end(), answer.messages.begin(), answer.messages.end());
    return encode_chat(chat_template_->render(all), encoder_);
  }

 private:
  const text::Tokenizer& tokenizer_;
  const std::optional<text::ChatTemplate>& chat_template_;
  text::Encoder encoder_;
};

/// Both documents of a line.
std::vector<std::vector<std::int32_t>> encode_preference(PreferenceParser& parser, PreferenceEncoder& encoder,
                                                         std::string_view line) {
  const auto all = parser.parse(line);
  std::vector documents{encoder.encode(all.prompt, all.chosen), encoder.encode(all.prompt, all.rejected)};
  for (const auto& tokens : documents)
    if (tokens.size() < 2 || std::none_of(tokens.begin() + 1, tokens.end(), [](auto id) { return id >= 0; }))
      throw ConfigError(
          rule_got_fix("chosen and rejected must have tokens of their own.", "an empty answer", "leave the line out"));
  return documents;
}

/// The pairs of a part, of all in the file.
SequenceRange pairs_of(const GptDatasetSpec& spec, const IndexedDataset& data) {
  return split_ranges(spec.split, data.size() / 2)[static_cast<std::size_t>(spec.part)];
}

}  // namespace

std::string build_preference_pair(const std::string& path, const text::Tokenizer& tokenizer,
                                  const std::optional<text::ChatTemplate>& chat_template,
                                  const std::string& cache_folder, const WaitMessage& say) {
  static constexpr CachedPair kPairs{"PreferenceDataset", "pairs",        "preferences",
                                     "a preference",      "leave it out", kPreferencesVersion};
  const auto make = [&]() -> EncodeLine {
    return [parser = std::make_shared<PreferenceParser>(),
            encoder = std::make_shared<PreferenceEncoder>(tokenizer, chat_template)](std::string_view line) {
      return encode_preference(*parser, *encoder, line);
    };
  };
  return build_cached_pair(kPairs, path, tokenizer, chat_template ? chat_template->description() : "none", cache_folder,
                           make, say);
}

void check_preferences(const std::string& path, const GptDatasetSpec& spec, const WaitMessage& say) {
  const IndexedDataset data(spec.prefix);
  const SequenceRange pairs = pairs_of(spec, data);
  if (pairs.size() == 0)
    throw EmptyPart(rule_got_fix(
        concat(path, ": the part for ", split_part_name(spec.part), " must have a pair."),
        concat("split ", spec.split, " of ", data.size() / 2, " pairs"),
        data.size() < 4 ? "add pairs to the file" : "give the part a larger share of data.split, or add pairs"));
  std::int64_t cut = 0;
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 2 * pairs.first; i < 2 * pairs.last; ++i) {
    tokens.resize(static_cast<std::size_t>(data.length(i)));
    data.read(i, 0, tokens);
    const auto end =
        static_cast<std::ptrdiff_t>(std::min(tokens.size(), static_cast<std::size_t>(spec.index.seq_length) + 1));
    if (std::none_of(tokens.begin() + 1, tokens.begin() + end, [](std::int64_t id) { return id >= 0; }))
      throw ConfigError(rule_got_fix(concat(path, ", pair ", i / 2 + 1, ": answers must begin within data.seq_length ",
                                            spec.index.seq_length, "."),
                                     concat("a text of ", tokens.size(), " tokens"),
                                     "raise --data.seq_length, or leave the pair out"));
    if (end < std::ssize(tokens)) ++cut;
  }
  if (cut > 0 && say)
    say(concat("warning: ", path, ": ", cut, " of ", 2 * pairs.size(), " answers are cut off at data.seq_length ",
               spec.index.seq_length));
}

PreferenceDataset::PreferenceDataset(const GptDatasetSpec& spec) : spec_(spec), data_(spec.prefix) {
  const SequenceRange range = pairs_of(spec, data_);
  first_ = range.first;
  pairs_ = range.size();
  if (pairs_ == 0) throw ConfigError(rule_got_fix(concat(spec.prefix, ": must have a pair."), "none"));
  NumpyRandom random(static_cast<std::uint32_t>(spec.index.seed));
  std::vector<std::int32_t> pass(static_cast<std::size_t>(pairs_));
  std::iota(pass.begin(), pass.end(), 0);
  do {
    random.shuffle(std::span(pass));
    order_.insert(order_.end(), pass.begin(), pass.end());
  } while (size() < spec.index.num_samples.value_or(0));
}

std::int64_t PreferenceDataset::document_of(std::int64_t i) const {
  if (i < 0 || i >= size()) throw std::out_of_range(concat("sample ", i, " of ", size()));
  return 2 * order_[static_cast<std::size_t>(i / 2)] + i % 2;
}

void PreferenceDataset::get(std::int64_t i, const Sample& out) const {
  check_spans(out, seq_length());
  const std::int64_t document = 2 * first_ + document_of(i);
  std::vector<std::int64_t> text(
      static_cast<std::size_t>(std::min<std::int64_t>(data_.length(document), seq_length() + 1)));
  data_.read(document, 0, text);
  const auto put = [](const auto& span, std::size_t k, auto value) {
    if (!span.empty()) span[k] = value;
  };
  const auto id_of = [](std::int64_t stored) { return stored < 0 ? ~stored : stored; };
  for (std::size_t k = 0; k < static_cast<std::size_t>(seq_length()); ++k) {
    const bool inside = k + 1 < text.size();
    put(out.tokens, k, inside ? id_of(text[k]) : std::int64_t{0});
    put(out.labels, k, inside ? id_of(text[k + 1]) : std::int64_t{0});
    put(out.loss_mask, k, inside && text[k + 1] >= 0 ? 1.0f : 0.0f);
  }
}

std::string PreferenceDataset::name_of(std::int64_t i) const { return concat(spec_.prefix, ", sample ", i); }

}  // namespace megatron::data
