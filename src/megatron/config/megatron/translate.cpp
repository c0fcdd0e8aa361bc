#include "megatron/config/megatron/translate.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/config/megatron/translation.h"
#include "megatron/config/megatron/yaml_words.h"
#include "megatron/config/options.h"
#include "megatron/config/value.h"

namespace megatron::config {
namespace {

template <class Number>
bool read(const std::string& word, Number& value) {
  const std::optional<Value> parsed = parse_value(FieldValue(&value), std::vector<std::string>{word});
  if (parsed) assign(FieldValue(&value), *parsed);
  return parsed.has_value();
}

bool same(FlagKind kind, const std::string& one, const std::string& other) {
  if (kind != FlagKind::Int && kind != FlagKind::Float) return one == other;
  double a = 0, b = 0;
  return read(one, a) && read(other, b) && a == b;
}

/// The default of a flag that is not here, or a value that is no more than that.
bool asks_for_nothing(const MegatronArguments::Given& given) {
  const MegatronFlag& flag = *given.flag;
  if ((flag.use != FlagUse::Missing && flag.use != FlagUse::Refused) || given.values.size() != 1) return false;
  const std::string& value = given.values.front();
  if (!flag.harmless.empty() && same(flag.kind, value, flag.harmless)) return true;
  return !flag.default_value.empty() && same(flag.kind, value, flag.default_value);
}

/// A feature whose flags do nothing there while none of `masters` turns it on, which the programs that are known cannot
/// where there are none. Flags of `still` ask for it by
/// themselves, or are checked there without it.
struct Switched {
  const char* feature;
  std::vector<const char*> masters, still;
};

const std::vector<Switched>& switched_features() {
  static const std::vector<Switched> rows = {
      {"mixture of experts", {"num-experts"}, {"expert-model-parallel-size", "moe-latent-size", "moe-use-upcycling"}},
      {"linear or sparse attention", {"experimental-attention-variant"}, {"linear-attention-freq"}},
      {"gated delta net", {"experimental-attention-variant"}, {"gdp-num-householder"}},
      {"multi-token prediction", {"mtp-num-layers"}, {"mtp-standalone", "mtp-hybrid-override-pattern"}},
      {"QK clip", {"qk-clip"}, {}},
      {"hyper-connections (mHC)", {"enable-mhc-connections"}, {}},
      {"more of FP8", {"fp8-format"}, {"fp8-quantizer-factory", "fp8-output-proj", "te-precision-config-file"}},
      {"FP4", {"fp4-format"}, {"fp4-quantizer-factory", "fp4-param-gather"}},
      {"Mamba and hybrid models", {"hybrid-layer-pattern", "hybrid-override-pattern", "is-hybrid-model"}, {}},
      {"reinforcement learning", {"perform-rl-step"}, {}},
      {"retrieval (biencoder)", {}, {}},
      {"vision", {}, {}},
  };
  return rows;
}

/// "without --num-experts": why a flag of a feature that is not turned on does nothing; "" where it asks for something.
std::string dormant(const MegatronArguments& args, const MegatronFlag& flag) {
  if (flag.use != FlagUse::Missing) return "";
  for (const auto& [name, tokenizer] : {std::pair{"tiktoken-num-special-tokens", "TikTokenizer"},
                                        {"null-tokenizer-eod-id", "NullTokenizer"},
                                        {"null-tokenizer-pad-id", "NullTokenizer"},
                                        {"sft-tokenizer-prompt-format", "SFTTokenizer"}})
    if (flag.names.front() == name && args.text("tokenizer-type") != tokenizer) return concat("without ", tokenizer);
  const auto row = std::ranges::find(switched_features(), flag.text, &Switched::feature);
  if (row == switched_features().end()) return "";
  const auto is_flag = [&](const char* name) { return flag.names.front() == name; };
  if (std::ranges::any_of(row->masters, is_flag) || std::ranges::any_of(row->still, is_flag)) return "";
  for (const auto& given : args.given())
    for (const char* const master : row->masters)
      if (given.flag == megatron_flag(master) && !asks_for_nothing(given) && given.words() != "--num-experts 0")
        return "";
  return row->masters.empty() ? "not read by this program" : concat("without --", row->masters.front());
}

void list_given(Translation& c) {
  MegatronTranslation& result = c.result;
  result.config = c.run;
  const Fields fields = fields_of(result.config);
  const auto setting = [&](const std::string& path) {
    const auto field = std::ranges::find(fields.fields, path, &Field::path);
    if (field == fields.fields.end()) throw std::logic_error("no option is named " + path);
    return path + " = " + toml_value(field->value);
  };
  for (const auto& given : c.args.given()) {
    const auto reason = c.ignored.find(given.flag);
    if (reason != c.ignored.end()) {
      result.ignored.push_back({given.words(), reason->second});
    } else if (given.flag->use == FlagUse::Maps) {
      std::string text;
      for (const std::string& path : mapped_paths(*given.flag)) text += (text.empty() ? "" : ", ") + setting(path);
      result.maps.push_back({given.words(), text});
    } else {
      const std::string off = dormant(c.args, *given.flag);
      result.ignored.push_back({given.words(), asks_for_nothing(given) ? "no effect at this value"
                                               : off.empty()           ? given.flag->text
                                                                       : off});
    }
  }
  result.own = c.args.own_words();
}

/// Words beside --yaml-cfg are not asked there.
void list_of_yaml(const MegatronArguments& typed, const YamlWords& yaml, MegatronTranslation& result) {
  for (const auto& given : typed.given())
    if (given.flag != megatron_flag("yaml-cfg")) result.ignored.push_back({given.words(), "with --yaml-cfg"});
  for (const auto& [words, why] : yaml.ignored) result.ignored.push_back({words, why});
  result.own = typed.own_words();
}

}  // namespace

void report_absent(Translation& c) {
  std::string got;
  const auto add = [&](const std::string& words, const std::string& why) {
    got += concat(got.empty() ? "" : "\n        ", words, " (", why, ")");
  };
  for (const auto& given : c.args.given()) {
    const MegatronFlag& flag = *given.flag;
    if (flag.use == FlagUse::Maps || flag.use == FlagUse::Ignored || asks_for_nothing(given)) continue;
    if (!dormant(c.args, flag).empty()) continue;
    add(given.words(), flag.use == FlagUse::Removed ? "gone from Megatron-LM; " + flag.text : flag.text);
  }
  for (const auto& [words, feature] : c.absent) add(words, feature);
  c.require(got.empty(), concat(c.is_saved() ? "" : c.program + ": ", "these options need what is not here."), got,
            "leave them out, where the run may be without it; docs/from_megatron_lm.md lists what is here");
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

int as_int(std::int64_t value) {
  constexpr std::int64_t kLow = std::numeric_limits<int>::min(), kHigh = std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp(value, kLow, kHigh));
}

bool read_integer(const std::string& word, std::int64_t& value) { return read(word, value); }
bool read_float(const std::string& word, double& value) { return read(word, value); }

void Translation::require(bool holds, const std::string& rule, const std::string& got, const std::string& fix) {
  if (holds) return;
  errors += errors.empty() ? "" : "\n";
  errors += is_saved() ? rule_got_fix(concat(saved_in, ": of the saved arguments, ", rule), got, saved_fix)
                       : rule_got_fix(rule, got, fix);
}

std::int64_t Translation::needed(const char* name) {
  if (args.has(name)) return args.integer(name);
  require(false, concat("--", name, " must be given."), "none", concat("--", name, " ", needed_example(name)));
  return 1;
}

void Translation::forbid_both(const char* one, const char* other) {
  require(is_saved() || !args.has(one) || !args.has(other),
          concat("--", one, " and --", other, " exclude one another."), "both", concat("leave --", other, " out"));
}

void Translation::ignore(const char* name, const std::string& why) {
  if (args.has(name)) ignored.emplace(megatron_flag(name), why);
}

void Translation::miss(const char* name, const std::string& feature) {
  for (const auto& given : args.given())
    if (given.flag == megatron_flag(name)) absent.emplace_back(given.words(), feature);
}

const std::vector<std::string>& megatron_programs() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> programs = model_kinds();
    for (std::string& kind : programs) kind.insert(0, "pretrain_");
    return programs;
  }();
  return all;
}

MegatronTranslation translate_megatron_arguments(const std::string& program, const std::vector<std::string>& words,
                                                 const MegatronLaunch& launch) {
  const MegatronArguments typed(words);
  YamlWords yaml;
  const bool has_yaml = typed.has("yaml-cfg") && typed.errors().empty();
  if (has_yaml) yaml = yaml_words(launch.yaml, typed.text("yaml-cfg"), launch.world_size);
  const MegatronArguments arguments = has_yaml ? MegatronArguments(yaml.words) : typed;
  Translation c{.program = program, .args = arguments, .launch = launch};
  for (const std::string& error : arguments.errors()) c.errors += (c.errors.empty() ? "" : "\n") + error;
  if (c.errors.empty())  // else values may be no numbers
    for (const auto translate :
         {translate_model, translate_experts, translate_positions, translate_layout, translate_batches, translate_data,
          translate_batch_steps, translate_tokenizer, translate_optimizer, translate_schedule, translate_recomputation,
          translate_checkpoints, translate_evaluation, translate_logs})
      translate(c);
  report_absent(c);
  if (!c.errors.empty()) throw ConfigError(c.errors);
  list_given(c);
  if (has_yaml) list_of_yaml(typed, yaml, c.result);
  return std::move(c.result);
}

std::string ignored_line(const MegatronTranslation& translation) {
  std::string line;
  for (const auto& entry : translation.ignored)
    line += (line.empty() ? "ignored, as they change no result: " : ", ") + entry.words;
  return line;
}

}  // namespace megatron::config
