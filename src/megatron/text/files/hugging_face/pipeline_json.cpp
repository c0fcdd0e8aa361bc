#include "megatron/text/files/hugging_face/pipeline_json.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>

#include "megatron/base/text/printable.h"
#include "megatron/text/files/base64.h"

namespace megatron::text {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;

constexpr std::array kBehaviors = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
constexpr std::array kSchemes = {"never", "first", "always"};
// Far beyond what files have: each step of a decoder is a call within the call of the one before.
constexpr std::size_t kMaxSteps = 256;
constexpr std::int32_t kMaxStripped = 1024;

/// Where `value` is among `names`.
template <class Enum, std::size_t N>
Enum read_name(const Component& component, const char* key, const std::array<const char*, N>& names) {
  const std::string value = component.text(key);
  for (std::size_t i = 0; i < N; ++i)
    if (value == names[i]) return static_cast<Enum>(i);
  component.refuse(concat(".", key, " is not known"), in_quotes(value));
}

/// Reads the steps of `component`: those of a Sequence, or it alone. `read(component)` reads one, which is no Sequence.
template <class Step, class Read>
void read_steps(const Component& component, const char* list, const Read& read, std::vector<Step>& steps,
                int depth = 0) {
  if (component.type() != "Sequence") {
    if (steps.size() == kMaxSteps) component.refuse(concat("must be one of at most ", kMaxSteps, " steps"), "more");
    return steps.push_back(read(component));
  }
  if (depth == 8) component.refuse("must not be a Sequence within eight others", "one");
  component.know({"type", list});
  for (std::size_t i = 0; i < component.array_size(list); ++i)
    read_steps(component.at(list, i), list, read, steps, depth + 1);
}

Pattern read_pattern(const Component& component) {
  const Component pattern = component.at("pattern");
  pattern.know({"String", "Regex"});
  if (pattern.has("String") == pattern.has("Regex")) pattern.refuse("must be a String or a Regex", "both or neither");
  const bool is_regex = pattern.has("Regex");
  return {pattern.text(is_regex ? "Regex" : "String"), is_regex};
}

BertNormalization read_bert(const Component& component) {
  component.know({"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  BertNormalization bert;
  bert.clean_text = component.boolean("clean_text", true);
  bert.space_chinese = component.boolean("handle_chinese_chars", true);
  bert.lower_case = component.boolean("lowercase", true);
  bert.strip_accents = component.boolean("strip_accents", bert.lower_case);
  return bert;
}

Normalizer read_normalizer(const Component& component) {
  const std::string type = component.type();
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    component.know({"type"});
    return normalizer::UnicodeForm{.compose = type.back() == 'C', .compatible = type.size() == 4};
  }
  if (type == "Lowercase" || type == "StripAccents" || type == "ByteLevel") {
    component.know({"type"});
    if (type == "Lowercase") return normalizer::Lowercase();
    if (type == "StripAccents") return normalizer::StripAccents();
    return normalizer::ByteLevel();
  }
  if (type == "BertNormalizer") return read_bert(component);
  if (type == "Strip") {
    component.know({"type", "strip_left", "strip_right"});
    return normalizer::Strip{component.boolean("strip_left", true), component.boolean("strip_right", true)};
  }
  if (type == "Replace") {
    component.know({"type", "pattern", "content"});
    return normalizer::Replace{read_pattern(component), component.text("content")};
  }
  if (type == "Prepend") {
    component.know({"type", "prepend"});
    return normalizer::Prepend{component.text("prepend")};
  }
  if (type == "Precompiled") {
    component.know({"type", "precompiled_charsmap"});
    normalizer::Precompiled step;
    if (component.has("precompiled_charsmap") && !from_base64(component.text("precompiled_charsmap"), step.charsmap))
      component.refuse(".precompiled_charsmap must be base64", shortened(component.get("precompiled_charsmap")));
    return step;
  }
  component.refuse(".type is no normalizer that is supported", in_quotes(type));
}

pretokenizer::Metaspace read_metaspace(const Component& component) {
  component.know({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  pretokenizer::Metaspace step;
  step.replacement = component.text("replacement");
  if (step.replacement.empty()) component.refuse(".replacement must be a character", "\"\"");
  if (component.has("prepend_scheme"))
    step.prepend = read_name<PrependScheme>(component, "prepend_scheme", kSchemes);
  else if (!component.boolean("add_prefix_space", true))
    step.prepend = PrependScheme::Never;
  step.split = component.boolean("split", true);
  return step;
}

PreTokenizer read_pre_tokenizer(const Component& component) {
  const std::string type = component.type();
  if (type == "ByteLevel") {
    component.know({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    component.boolean("trim_offsets", true);  // what a post-processor does with offsets
    return pretokenizer::ByteLevel{component.boolean("add_prefix_space", true), component.boolean("use_regex", true)};
  }
  if (type == "Split") {
    component.know({"type", "pattern", "behavior", "invert"});
    return pretokenizer::Split{read_pattern(component), read_name<SplitBehavior>(component, "behavior", kBehaviors),
                               component.boolean("invert", false)};
  }
  if (type == "Digits") {
    component.know({"type", "individual_digits"});
    return pretokenizer::Digits{component.boolean("individual_digits", false)};
  }
  if (type == "Punctuation") {
    component.know({"type", "behavior"});
    if (!component.has("behavior")) return pretokenizer::Punctuation();
    return pretokenizer::Punctuation{read_name<SplitBehavior>(component, "behavior", kBehaviors)};
  }
  if (type == "Metaspace") return read_metaspace(component);
  if (type != "Whitespace" && type != "WhitespaceSplit" && type != "BertPreTokenizer")
    component.refuse(".type is no pre-tokenizer that is supported", in_quotes(type));
  component.know({"type"});
  if (type == "Whitespace") return pretokenizer::Whitespace();
  if (type == "WhitespaceSplit") return pretokenizer::WhitespaceSplit();
  return pretokenizer::BertWords();
}

Decoder read_decoder(const Component& component) {
  const std::string type = component.type();
  if (type == "ByteLevel") {
    component.know({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return decoder::ByteLevel();
  }
  if (type == "WordPiece") {
    component.know({"type", "prefix", "cleanup"});
    return decoder::WordPiece{component.text("prefix"), component.boolean("cleanup", true)};
  }
  if (type == "Metaspace") {
    const pretokenizer::Metaspace step = read_metaspace(component);
    return decoder::Metaspace{step.replacement, step.prepend};
  }
  if (type == "Replace") {
    component.know({"type", "pattern", "content"});
    return decoder::Replace{read_pattern(component), component.text("content")};
  }
  if (type == "Strip") {
    component.know({"type", "content", "start", "stop"});
    const decoder::Strip step{component.text("content"), component.number("start"), component.number("stop")};
    if (std::max(step.start, step.stop) > kMaxStripped)
      component.refuse(concat("must take away at most ", kMaxStripped, " characters"), "more");
    return step;
  }
  if (type == "BPEDecoder") {
    component.know({"type", "suffix"});
    return decoder::BpeSuffix{component.text("suffix")};
  }
  if (type != "ByteFallback" && type != "Fuse")
    component.refuse(".type is no decoder that is supported", in_quotes(type));
  component.know({"type"});
  if (type == "Fuse") return decoder::Fuse();
  return decoder::ByteFallback();
}

Json pattern_json(const Pattern& pattern) { return {{pattern.is_regex ? "Regex" : "String", pattern.text}}; }

template <class Enum, std::size_t N>
const char* name_of(Enum value, const std::array<const char*, N>& names) {
  return names[static_cast<std::size_t>(value)];
}

Json byte_level(bool add_prefix_space, bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json metaspace(const std::string& replacement, PrependScheme prepend, bool split) {
  return {{"type", "Metaspace"},
          {"replacement", replacement},
          {"prepend_scheme", name_of(prepend, kSchemes)},
          {"split", split}};
}

struct ToJson {
  // normalizers
  Json operator()(const normalizer::UnicodeForm& s) const {
    return {{"type", std::string("NF") + (s.compatible ? "K" : "") + (s.compose ? "C" : "D")}};
  }
  Json operator()(const normalizer::Lowercase&) const { return {{"type", "Lowercase"}}; }
  Json operator()(const normalizer::StripAccents&) const { return {{"type", "StripAccents"}}; }
  Json operator()(const normalizer::Strip& s) const {
    return {{"type", "Strip"}, {"strip_left", s.left}, {"strip_right", s.right}};
  }
  Json operator()(const normalizer::Replace& s) const {
    return {{"type", "Replace"}, {"pattern", pattern_json(s.pattern)}, {"content", s.content}};
  }
  Json operator()(const normalizer::Prepend& s) const { return {{"type", "Prepend"}, {"prepend", s.content}}; }
  Json operator()(const BertNormalization& s) const {
    return {{"type", "BertNormalizer"},
            {"clean_text", s.clean_text},
            {"handle_chinese_chars", s.space_chinese},
            {"strip_accents", s.strip_accents},
            {"lowercase", s.lower_case}};
  }
  Json operator()(const normalizer::Precompiled& s) const {
    return {{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(s.charsmap)}};
  }
  Json operator()(const normalizer::SentencePiece& s) const {
    return {{"type", "SentencePiece"},
            {"charsmap", to_base64(s.charsmap)},
            {"add_dummy_prefix", s.add_dummy_prefix},
            {"remove_extra_spaces", s.remove_extra_spaces},
            {"escape_spaces", s.escape_spaces},
            {"space_is_suffix", s.space_is_suffix},
            {"user_symbols", s.user_symbols}};
  }
  Json operator()(const normalizer::ByteLevel&) const { return {{"type", "ByteLevel"}}; }
  // pre-tokenizers
  Json operator()(const pretokenizer::ByteLevel& s) const { return byte_level(s.add_prefix_space, s.use_regex); }
  Json operator()(const pretokenizer::Split& s) const {
    return {{"type", "Split"},
            {"pattern", pattern_json(s.pattern)},
            {"behavior", name_of(s.behavior, kBehaviors)},
            {"invert", s.invert}};
  }
  Json operator()(const pretokenizer::Whitespace&) const { return {{"type", "Whitespace"}}; }
  Json operator()(const pretokenizer::WhitespaceSplit&) const { return {{"type", "WhitespaceSplit"}}; }
  Json operator()(const pretokenizer::BertWords&) const { return {{"type", "BertPreTokenizer"}}; }
  Json operator()(const pretokenizer::Digits& s) const {
    return {{"type", "Digits"}, {"individual_digits", s.individual}};
  }
  Json operator()(const pretokenizer::Punctuation& s) const {
    return {{"type", "Punctuation"}, {"behavior", name_of(s.behavior, kBehaviors)}};
  }
  Json operator()(const pretokenizer::Metaspace& s) const { return metaspace(s.replacement, s.prepend, s.split); }
  // decoders
  Json operator()(const decoder::ByteLevel&) const { return byte_level(false, true); }
  Json operator()(const decoder::WordPiece& s) const {
    return {{"type", "WordPiece"}, {"prefix", s.prefix}, {"cleanup", s.cleanup}};
  }
  Json operator()(const decoder::Metaspace& s) const { return metaspace(s.replacement, s.prepend, true); }
  Json operator()(const decoder::Replace& s) const {
    return {{"type", "Replace"}, {"pattern", pattern_json(s.pattern)}, {"content", s.content}};
  }
  Json operator()(const decoder::ByteFallback&) const { return {{"type", "ByteFallback"}}; }
  Json operator()(const decoder::Fuse&) const { return {{"type", "Fuse"}}; }
  Json operator()(const decoder::Strip& s) const {
    return {{"type", "Strip"}, {"content", s.content}, {"start", s.start}, {"stop", s.stop}};
  }
  Json operator()(const decoder::BpeSuffix& s) const { return {{"type", "BPEDecoder"}, {"suffix", s.suffix}}; }
  Json operator()(const decoder::SentencePiece& s) const {
    return {{"type", "SentencePiece"},
            {"unknown_surface", s.unknown_surface},
            {"drop_first_space", s.drop_first_space},
            {"drop_all_first_spaces", s.drop_all_first_spaces}};
  }
};

template <class Step>
Json steps_json(const std::vector<Step>& steps, const char* list) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return std::visit(ToJson(), steps[0]);
  Json parts = Json::array();
  for (const Step& step : steps) parts.push_back(std::visit(ToJson(), step));
  return {{"type", "Sequence"}, {list, parts}};
}

}  // namespace

std::vector<Normalizer> read_normalizers(const Component& component) {
  std::vector<Normalizer> steps;
  read_steps(component, "normalizers", read_normalizer, steps);
  return steps;
}

std::vector<PreTokenizer> read_pre_tokenizers(const Component& component) {
  std::vector<PreTokenizer> steps;
  read_steps(component, "pretokenizers", read_pre_tokenizer, steps);
  return steps;
}

std::vector<Decoder> read_decoders(const Component& component) {
  std::vector<Decoder> steps;
  read_steps(component, "decoders", read_decoder, steps);
  return steps;
}

Json to_json(const std::vector<Normalizer>& steps) { return steps_json(steps, "normalizers"); }
Json to_json(const std::vector<PreTokenizer>& steps) { return steps_json(steps, "pretokenizers"); }
Json to_json(const std::vector<Decoder>& steps) { return steps_json(steps, "decoders"); }

}  // namespace megatron::text
