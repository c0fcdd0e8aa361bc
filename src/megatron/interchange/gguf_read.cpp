#include "megatron/interchange/gguf_read.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/base/text/json.h"
#include "megatron/base/text/printable.h"
#include "megatron/families/hf_family.h"
#include "megatron/interchange/gguf_blocks.h"
#include "megatron/interchange/mapped_source.h"
#include "megatron/text/files/gguf_tokenizer.h"
#include "megatron/text/tokenizer.h"

namespace megatron::interchange {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kTakeFolder = "take the model's Hugging Face folder instead";
constexpr const char* kRopeFactors = "rope_freqs.weight";

/// A mapped file and what stands before its data.
struct OpenGguf {
  explicit OpenGguf(const fs::path& path) : mapped(path), file(mapped.text(), path.string()) {}
  OpenGguf(const OpenGguf&) = delete;
  OpenGguf& operator=(const OpenGguf&) = delete;

  MappedFile mapped;
  Gguf file;
};

const GgufTensor* find_tensor(const Gguf& file, std::string_view name) {
  const auto found = std::ranges::find(file.tensors(), name, &GgufTensor::name);
  return found == file.tensors().end() ? nullptr : &*found;
}

/// A float32 of the file as the number that somebody wrote: 1e-05, not 9.99999974737875163e-06.
double as_written(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<float>(value)).ptr;
  double result = value;
  std::from_chars(text, end, result);
  return result;
}

/// The entries of the file's architecture; each must be asked for.
class ArchitectureEntries {
 public:
  explicit ArchitectureEntries(const Gguf& file) : file_(file) {
    const auto* name = file.find<std::string_view>("general.architecture");
    if (name == nullptr || (*name != "llama" && *name != "qwen2"))
      refuse("general.architecture must be llama or qwen2.", name == nullptr ? "none" : printable(name->substr(0, 60)));
    architecture_ = *name;
  }
  const std::string& architecture() const { return architecture_; }

  [[noreturn]] void refuse(const std::string& rule, const std::string& got) const {
    throw ConfigError(rule_got_fix(concat(file_.name(), ": ", rule), got, kTakeFolder));
  }
  std::optional<std::int64_t> size(const std::string& key) {
    const auto* value = file_.find<std::int64_t>(full(key));
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  std::int64_t needed_size(const std::string& key) {
    const auto value = size(key);
    if (!value) refuse(concat(full(key), " must be there."), "none");
    return *value;
  }
  double number(const std::string& key, std::optional<double> otherwise = std::nullopt) {
    const auto* value = file_.find<double>(full(key));
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr || !std::isfinite(*value))
      refuse(concat(full(key), " must be a number."), value == nullptr ? "none" : "inf or nan");
    return as_written(*value);
  }
  std::string text(const std::string& key, const std::string& otherwise) {
    const auto* value = file_.find<std::string_view>(full(key));
    return value == nullptr ? otherwise : std::string(*value);
  }
  /// A number that must be `wanted` where it is there.
  void must_be(const std::string& key, std::int64_t wanted) {
    if (const auto value = size(key); value && *value != wanted)
      refuse(concat(full(key), " must be ", wanted, "."), concat(*value));
  }
  void check_all_are_known() const {
    for (const auto& [key, value] : file_.entries())
      if (key.starts_with(architecture_ + ".") && !asked_.contains(key))
        refuse("an entry of the architecture must be one that is known here.", printable(key.substr(0, 80)));
  }

 private:
  std::string full(const std::string& key) {
    std::string name = concat(architecture_, ".", key);
    asked_.insert(name);
    return name;
  }

  const Gguf& file_;
  std::string architecture_;
  std::set<std::string, std::less<>> asked_;
};

constexpr double kLowTurns = 1, kHighTurns = 4;

/// The largest difference of two lists of factors, as a part of the second's; infinite where it is no number.
double largest_difference(const std::vector<float>& a, std::span<const float> b) {
  double most = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double each = std::abs(a[i] - b[i]) / std::abs(b[i]);
    if (!(each <= 1)) return std::numeric_limits<double>::infinity();
    most = std::max(most, each);
  }
  return most;
}

/// What the original length may be: a power of two, as published models have it; what a factor between 1 and `most`
/// tells, of how often its pair turns within that length; the least in which all pairs turn often enough whose is 1.
std::vector<std::int64_t> lengths_to_try(std::span<const float> factors, double base, double most) {
  constexpr int kTold = 4;  // one would do
  std::vector<std::int64_t> lengths;
  for (std::int64_t power = 1; power <= families::kMaxPositions; power *= 2) lengths.push_back(power);
  double least = 0;
  int told = 0;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const double period =
        2 * std::numbers::pi * std::pow(base, static_cast<double>(i) / static_cast<double>(factors.size()));
    const double kept = (1 / factors[i] - 1 / most) / (1 - 1 / most);
    if (kept >= 1) least = std::ceil(period * kHighTurns);
    const double length = std::round(period * (kLowTurns + kept * (kHighTurns - kLowTurns)));
    if (kept > 0 && kept < 1 && length >= 1 && length <= families::kMaxPositions && ++told <= kTold)
      lengths.push_back(static_cast<std::int64_t>(length));
  }
  if (least >= 1 && least <= families::kMaxPositions) lengths.push_back(static_cast<std::int64_t>(least));
  return lengths;
}

/// Llama 3's scaling, of which the file has the factors alone.
json llama3_scaling(const Gguf& file, std::string_view bytes, const GgufTensor& tensor, double base,
                    std::int64_t head) {
  const auto refuse = [&](const std::string& got) {
    throw ConfigError(rule_got_fix(concat(file.name(), ": ", kRopeFactors,
                                          " must hold Llama 3's factors: low_freq_factor 1, high_freq_factor 4, and "
                                          "some whole number of original positions."),
                                   got, kTakeFolder));
  };
  if (tensor.type != GgufType::F32 || tensor.shape != std::vector<std::int64_t>{head / 2} || head < 2)
    refuse("another type or size");
  std::vector<float> given(static_cast<std::size_t>(head / 2));
  std::memcpy(given.data(), bytes.data() + tensor.begin, tensor.bytes);
  const auto found = find_llama3_scaling(given, base, 1e-4);
  if (!found) refuse("other factors");
  return {{"rope_type", "llama3"},
          {"factor", found->factor},
          {"low_freq_factor", kLowTurns},
          {"high_freq_factor", kHighTurns},
          {"original_max_position_embeddings", found->original_positions}};
}

json scaling_of(const Gguf& file, std::string_view bytes, ArchitectureEntries& entries, double base,
                std::int64_t head) {
  const std::string type = entries.text("rope.scaling.type", "linear");  // as llama.cpp takes it
  const double factor = entries.number("rope.scaling.factor", 1);
  if (type != "none" && type != "linear")
    entries.refuse("rope.scaling.type must be none or linear.", printable(type.substr(0, 60)));
  const GgufTensor* factors = find_tensor(file, kRopeFactors);
  if (type == "linear" && factor != 1) {
    if (factors != nullptr) entries.refuse("one scaling of rotary positions must be enough.", kRopeFactors);
    return {{"rope_type", "linear"}, {"factor", factor}};
  }
  return factors == nullptr ? json() : llama3_scaling(file, bytes, *factors, base, head);
}

json config_of(const Gguf& file, std::string_view bytes) {
  ArchitectureEntries entries(file);
  const GgufTensor* embedding = find_tensor(file, "token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    entries.refuse("token_embd.weight must be a matrix.", embedding == nullptr ? "none" : "another tensor");
  const bool llama = entries.architecture() == "llama";
  const std::int64_t heads = entries.needed_size("attention.head_count"),
                     hidden = entries.needed_size("embedding_length");
  if (heads < 1) entries.refuse("attention.head_count must be 1 or above.", concat(heads));
  const std::int64_t head = entries.size("attention.key_length").value_or(hidden / heads);
  entries.must_be("attention.value_length", head);
  entries.must_be("rope.dimension_count", head);
  entries.must_be("vocab_size", embedding->shape[0]);
  entries.must_be("expert_count", 0);
  entries.must_be("expert_used_count", 0);
  const double base = entries.number("rope.freq_base", 10000);
  const auto has = [&](const char* name) { return find_tensor(file, name) != nullptr; };
  json config = {{"model_type", entries.architecture()},
                 {"architectures", json::array({llama ? "LlamaForCausalLM" : "Qwen2ForCausalLM"})},
                 {"hidden_act", "silu"},
                 {"vocab_size", embedding->shape[0]},
                 {"hidden_size", hidden},
                 {"intermediate_size", entries.needed_size("feed_forward_length")},
                 {"num_hidden_layers", entries.needed_size("block_count")},
                 {"num_attention_heads", heads},
                 {"num_key_value_heads", entries.size("attention.head_count_kv").value_or(heads)},
                 {"head_dim", head},
                 {"max_position_embeddings", entries.needed_size("context_length")},
                 {"rms_norm_eps", entries.number("attention.layer_norm_rms_epsilon")},
                 {"rope_theta", base},
                 {"tie_word_embeddings", !has("output.weight")}};
  if (llama)
    config.update({{"attention_bias", has("blk.0.attn_output.bias")}, {"mlp_bias", has("blk.0.ffn_up.bias")}});
  else
    config["use_sliding_window"] = false;
  if (const json scaling = scaling_of(file, bytes, entries, base, head); !scaling.is_null())
    config["rope_scaling"] = scaling;
  entries.check_all_are_known();
  return config;
}

TokenIds token_ids_of(const Gguf& file) {
  TokenIds ids;
  const auto id_of = [&](const char* name) -> std::optional<std::int64_t> {
    const auto* id = file.find<std::int64_t>(concat("tokenizer.ggml.", name, "_token_id"));
    if (id == nullptr) return std::nullopt;
    if (*id < 0 || *id >= std::int64_t{1} << 31)
      throw ConfigError(rule_got_fix(concat(file.name(), ": the ", name, " token must be a token."), concat(*id)));
    return *id;
  };
  std::vector<std::int64_t> ends;
  for (const char* name : {"eos", "eot"})
    if (const auto id = id_of(name); id && std::ranges::count(ends, *id) == 0) ends.push_back(*id);
  if (!ends.empty()) ids["eos_token_id"] = ends.size() == 1 ? concat(ends[0]) : json(ends).dump();
  for (const auto& [theirs, ours] : {std::pair{"bos", "bos_token_id"}, {"padding", "pad_token_id"}})
    if (const auto id = id_of(theirs)) ids[ours] = concat(*id);
  return ids;
}

/// The folder's name of a tensor; those that it has not keep theirs.
std::string folder_name(std::string_view name) {
  const std::map<std::string_view, const char*> whole = {{"token_embd.weight", "model.embed_tokens.weight"},
                                                         {"output_norm.weight", "model.norm.weight"},
                                                         {"output.weight", "lm_head.weight"}};
  if (const auto found = whole.find(name); found != whole.end()) return found->second;
  constexpr std::string_view kBlock = "blk.";
  if (!name.starts_with(kBlock)) return std::string(name);
  const std::string_view rest = name.substr(kBlock.size());
  const std::size_t dot = rest.find('.'), last = rest.rfind('.');
  if (dot == std::string_view::npos || last == dot) return std::string(name);
  for (const auto& [theirs, ours] : kGgufLayer)
    if (rest.substr(dot + 1, last - dot - 1) == theirs)
      return concat("model.layers.", rest.substr(0, dot), ".", ours, rest.substr(last));
  return std::string(name);
}

class GgufSource : public checkpoint::WeightSource {
 public:
  /// `head`: of rows that alternate; 0: none do.
  GgufSource(std::shared_ptr<const OpenGguf> gguf, std::int64_t head) : gguf_(std::move(gguf)) {
    for (const GgufTensor& tensor : gguf_->file.tensors()) {
      if (tensor.name == kRopeFactors) continue;  // the configuration has it
      const bool turns = head > 0 && (tensor.name.find(".attn_q.") != std::string::npos ||
                                      tensor.name.find(".attn_k.") != std::string::npos);
      if (tensor.shape.size() == 1 && gguf_block(tensor.type).numbers > 1)
        throw ConfigError(rule_got_fix(concat(name(), ": vectors must be F32, F16 or BF16."), printable(tensor.name)));
      if (turns && (head % 2 != 0 || tensor.shape[0] % head != 0))
        throw ConfigError(rule_got_fix(concat(name(), ": \"", printable(tensor.name), "\" must have whole heads."),
                                       concat(tensor.shape[0], " rows, heads of ", head)));
      if (!places_.try_emplace(folder_name(tensor.name), TensorEntry{&tensor, turns ? head : 0}).second)
        throw ConfigError(rule_got_fix(concat(name(), ": no tensor may come twice."), printable(tensor.name)));
    }
  }

  std::string name() const override { return gguf_->file.name(); }
  std::vector<std::string> tensors() const override {
    std::vector<std::string> names;
    for (const auto& [name, place] : places_) names.push_back(name);
    return names;
  }
  const std::vector<std::int64_t>* shape(const std::string& tensor) const override {
    const auto found = places_.find(tensor);
    return found == places_.end() ? nullptr : &found->second.tensor->shape;
  }
  std::string dtype(const std::string& tensor) const override {
    const GgufType type = places_.at(tensor).tensor->type;
    return type == GgufType::F16 ? "F16" : type == GgufType::BF16 ? "BF16" : "F32";
  }
  void read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const override;

 private:
  struct TensorEntry {
    const GgufTensor* tensor;
    std::int64_t head;
  };
  std::shared_ptr<const OpenGguf> gguf_;
  std::map<std::string, TensorEntry> places_;
};

/// Row (half h, i) of a head is row 2 i + h of the file (LlamaModel.permute).
std::int64_t row_in_file(std::int64_t row, std::int64_t head) {
  if (head == 0) return row;
  const std::int64_t within = row % head, half = head / 2;
  return row - within + (within % half) * 2 + within / half;
}

void GgufSource::read(const std::string& name, const checkpoint::Box& box, const at::Tensor& into) const {
  const auto& [tensor, head] = places_.at(name);
  if (!checkpoint::inside(box, tensor->shape)) throw std::logic_error(concat("a slice outside of \"", name, "\""));
  if (into.numel() == 0) return;
  const bool matrix = tensor->shape.size() == 2;
  if (tensor->shape.size() > 2) throw std::logic_error("a tensor of a language model has one or two dimensions");
  const std::int64_t all = matrix ? tensor->shape[1] : 1;
  const std::int64_t first = matrix ? box.offset[1] : 0, columns = matrix ? box.shape[1] : 1;
  const auto bytes = gguf_->mapped.range(tensor->begin, tensor->bytes, 1, name);
  const GgufBlock block = gguf_block(tensor->type);
  const auto row_bytes = static_cast<std::size_t>(all / block.numbers * block.bytes);
  const at::ScalarType type = tensor->type == GgufType::F16    ? at::kHalf
                              : tensor->type == GgufType::BF16 ? at::kBFloat16
                                                               : at::kFloat;
  constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;
  const std::int64_t step = std::max<std::int64_t>(1, kElementsAtOnce / columns);
  for (std::int64_t begin = 0; begin < box.shape[0]; begin += step) {
    const std::int64_t count = std::min(step, box.shape[0] - begin);
    const at::Tensor part = at::empty({count, columns}, type);
    auto* to = static_cast<std::byte*>(part.mutable_data_ptr());
    const auto part_bytes = static_cast<std::size_t>(columns * part.element_size());
    for (std::int64_t i = 0; i < count; ++i, to += part_bytes) {
      const auto row = static_cast<std::size_t>(row_in_file(box.offset[0] + begin + i, head));
      const std::byte* const from = bytes.data() + row * row_bytes;
      if (block.numbers > 1)
        read_blocks(from, tensor->type, first, columns, reinterpret_cast<float*>(to));
      else
        std::memcpy(to, from + first * block.bytes, part_bytes);
    }
    into.detach().narrow(0, begin, count).copy_(matrix ? part : part.view({count}));
  }
}

families::FolderConfig config_from(const OpenGguf& gguf) {
  return families::parse_config(gguf_config_json(gguf.file, gguf.mapped.text()), gguf.file.name());
}

}  // namespace

std::optional<Llama3Scaling> find_llama3_scaling(std::span<const float> factors, double base, double difference) {
  if (factors.empty()) return std::nullopt;
  config::ModelConfig model;
  model.rotary_base = base;
  model.rope_low_freq_factor = kLowTurns;
  model.rope_high_freq_factor = kHighTurns;
  model.rope_scaling_factor = as_written(*std::ranges::max_element(factors));
  std::optional<Llama3Scaling> best;
  for (const std::int64_t length : lengths_to_try(factors, base, model.rope_scaling_factor)) {
    model.rope_original_positions = length;
    const double far = largest_difference(rope_factors(model, 2 * std::ssize(factors)), factors);
    if (!(best ? far < difference : far <= difference)) continue;
    difference = far;
    best = {.factor = model.rope_scaling_factor, .original_positions = length};
  }
  return best;
}

std::string gguf_config_json(const Gguf& file, std::string_view bytes) {
  json config = config_of(file, bytes);
  for (const auto& [name, id] : token_ids_of(file)) config[name] = parse_json(id);
  return config.dump(2) + "\n";
}

std::string gguf_config_json(const fs::path& path) {
  const OpenGguf gguf(path);
  return gguf_config_json(gguf.file, gguf.mapped.text());
}

families::FolderConfig read_gguf_config(const fs::path& path) { return config_from(OpenGguf(path)); }

std::unique_ptr<checkpoint::WeightSource> open_gguf(const fs::path& path) {
  auto gguf = std::make_shared<const OpenGguf>(path);
  const families::FolderConfig config = config_from(*gguf);
  const plan::ModelShape shape = families::shape_of(config.model);
  if (shape.num_layers > static_cast<std::int64_t>(gguf->file.tensors().size()))
    throw ConfigError(rule_got_fix(concat(path.string(), ": must hold the tensors of ", shape.num_layers, " layers."),
                                   concat(gguf->file.tensors().size(), " tensors")));
  const bool llama = *gguf->file.find<std::string_view>("general.architecture") == "llama";
  auto raw = std::make_shared<GgufSource>(std::move(gguf), llama ? shape.head() : 0);
  families::Mapping mapping =
      config.family->table(shape, [&](const std::string& name) { return raw->shape(name) != nullptr; });
  const auto used = families::source_shapes(mapping);
  for (const std::string& name : raw->tensors())
    if (!used.contains(name))
      throw ConfigError(rule_got_fix(concat(path.string(), ": every tensor must belong to the model."), printable(name),
                                     kTakeFolder));
  return std::make_unique<MappedSource>(std::move(raw), std::move(mapping));
}

bool gguf_has_tokenizer(const fs::path& path) { return text::has_gguf_tokenizer(OpenGguf(path).file); }

TokenIds gguf_token_ids(const fs::path& path) { return token_ids_of(OpenGguf(path).file); }

int write_gguf_companions(const fs::path& path, const fs::path& folder) {
  const OpenGguf gguf(path);
  if (!text::has_gguf_tokenizer(gguf.file)) return 0;
  json config = json::object();
  for (const auto& [name, token] : text::gguf_named_tokens(gguf.file)) config[name] = token;
  for (const char* flag : {"add_bos_token", "add_eos_token"})
    if (const auto* value = gguf.file.find<bool>(concat("tokenizer.ggml.", flag))) config[flag] = *value;
  make_folder(folder);
  write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
  text::Tokenizer(text::read_gguf_tokenizer(gguf.file)).save(folder);
  const std::string chat = text::gguf_chat_template(gguf.file);
  if (!chat.empty()) write_file(folder / "chat_template.jinja", chat);
  return chat.empty() ? 2 : 3;
}

}  // namespace megatron::interchange
